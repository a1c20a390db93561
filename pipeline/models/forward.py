"""Next-token logits and log-probs at chosen positions only: the vocabulary product is not paid for the rest."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.errors import ConfigError
from pipeline.models.chunked_logprobs import head_logprobs
from pipeline.models.cpu.blocks import Body, is_plain
from pipeline.models.packed import packed_states
from pipeline.models.routing import Tally, replaying
from pipeline.models.sequence_parallel import Pieces
from pipeline.rl.logprobs import logprobs_and_entropy

PLAIN_HEAD_BLOCKERS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")
"""Settings that bend or scale the logits: a proof on small weights might not see them."""

_BODIES: weakref.WeakKeyDictionary[Any, Body | None] = weakref.WeakKeyDictionary()
_PROVED: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def logprobs_at(
    model: Any,
    input_ids: Tensor,
    where: Tensor,
    temperature: float,
    entropy: bool = False,
    *,
    kept: Tensor | None = None,
    routing: Tensor | None = None,
    rerouted: Tally | None = None,
    lengths: Sequence[int] | None = None,
    chunk_tokens: int | None = None,
    pieces: Pieces | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Log-probs [B, T] in float32 of the tokens at `where`, 0 elsewhere, and their entropies if asked for.

    `chunk_tokens`: at most so many rows of logits exist at once; None: all. `kept` [N, K]: see `logprobs_and_entropy`;
    `pieces`: each rank computes a piece of every row, and all get the same. The rest: see `logits_at`.

    Raises: ConfigError where the output layer cannot be computed in chunks, or sequences in pieces.
    """
    if pieces is not None:
        return _in_pieces(model, input_ids, where, temperature, entropy, kept, routing, rerouted, chunk_tokens, pieces)
    targets = input_ids[where]
    if chunk_tokens is None:
        logits = logits_at(model, input_ids, where, routing, rerouted, lengths)
        values, entropies = logprobs_and_entropy(logits, targets, temperature, kept)
        return spread(values, where), spread(entropies, where) if entropy else None
    _require_plain_head(model, f"train.logits_chunk_tokens={chunk_tokens}", "null")
    with _routed(model, routing, rerouted):
        hidden = _hidden_before(model, input_ids, where, lengths)
    head = model.get_output_embeddings()
    found, seen = head_logprobs(head, hidden, targets, temperature, kept, chunk_tokens, entropy)
    return spread(found, where), None if seen is None else spread(seen, where)


def _in_pieces(
    model: Any,
    input_ids: Tensor,
    where: Tensor,
    temperature: float,
    entropy: bool,
    kept: Tensor | None,
    routing: Tensor | None,
    rerouted: Tally | None,
    chunk_tokens: int | None,
    pieces: Pieces,
) -> tuple[Tensor, Tensor | None]:
    """As `logprobs_at`: this rank computes its piece of every row, and the pieces are put together."""
    _require_plain_head(model, f"train.sequence_parallel={pieces.size}", "1")
    _check_first(where)
    at, targets = pieces.part(where[:, 1:]), pieces.part(input_ids[:, 1:])
    if kept is not None:  # its rows are those of `where`, in order
        number = torch.zeros(where.shape, dtype=torch.int64, device=where.device)
        number[where] = torch.arange(len(kept), device=where.device)
        kept = kept[pieces.part(number[:, 1:])[at]]
    own_routing = None
    if routing is not None:  # as `_routed` wants it, with a last token that it leaves out
        own_routing = F.pad(pieces.part(routing[:, :-1], -1), (0, 0, 0, 0, 0, 1), value=-1)
    with _routed(model, own_routing, rerouted):
        hidden = pieces.states(model, input_ids[:, :-1])[at]
    head = model.get_output_embeddings()
    chunk_tokens = chunk_tokens or max(1, len(hidden))
    values, entropies = head_logprobs(head, hidden, targets[at], temperature, kept, chunk_tokens, entropy)

    def joined(found: Tensor) -> Tensor:
        return F.pad(pieces.whole(spread(found, at), where.shape[1] - 1), (1, 0))

    return joined(values), None if entropies is None else joined(entropies)


def logits_at(
    model: Any,
    input_ids: Tensor,
    where: Tensor,
    routing: Tensor | None = None,
    rerouted: Tally | None = None,
    lengths: Sequence[int] | None = None,
) -> Tensor:
    """Logits [N, V] that predict the tokens at `where` (bool [B, T], False at column 0), row by row.

    input_ids: int64 [B, T], right-padded: with causal attention what stands behind a token does not reach it, so no
    attention mask is needed and the fastest attention kernels apply. `routing` [B, T, layers, top_k]: the experts to
    use (`routing.replaying`); what the routers would have chosen otherwise is added to `rerouted`. `lengths`: tokens of
    each row; with them the rows are packed, and padding is not computed.

    Raises: ConfigError for a model that cannot be packed.
    """
    is_plain_head = _has_plain_head(model)  # its proof is a forward of its own
    with _routed(model, routing, rerouted):
        if is_plain_head:
            picked: Tensor = model.get_output_embeddings()(_hidden_before(model, input_ids, where, lengths))
            return picked
        if lengths is not None:
            raise ConfigError(
                f"packing: the head of model type {model.config.model_type!r} is more than a product; set packing: "
                "false"
            )
        _check_first(where)
        whole: Tensor = model(input_ids=input_ids[:, :-1], use_cache=False).logits[where[:, 1:]]
        return whole


def _hidden_before(model: Any, input_ids: Tensor, where: Tensor, lengths: Sequence[int] | None) -> Tensor:
    """[N, H] hidden states from which the tokens at `where` are predicted, row by row."""
    _check_first(where)
    shifted = where[:, 1:]
    if lengths is None:
        return _hidden_states(model, input_ids[:, :-1])[shifted]
    before = [n - 1 for n in lengths if n > 1]  # the last token of a row predicts nothing
    real = torch.arange(shifted.shape[1])[None] < torch.tensor([n - 1 for n in lengths])[:, None]
    real = real.to(input_ids.device)
    ids, body = input_ids[:, :-1][real], _body(model)
    hidden = packed_states(model, ids, before) if body is None else body.packed_states(model, ids, before)
    return hidden[shifted[real]]


def _require_plain_head(model: Any, what: str, off: str) -> None:
    if not _has_plain_head(model):
        raise ConfigError(
            f"{what}: model type {model.config.model_type!r} does more than one product between its last hidden state "
            f"and its logits; set it to {off}"
        )


def _check_first(where: Tensor) -> None:
    if where[:, 0].any():
        raise ValueError("the first token of a row has nothing before it that could predict it")


@contextmanager
def _routed(model: Any, routing: Tensor | None, rerouted: Tally | None) -> Iterator[None]:
    """Within the block, a forward over all but the last tokens uses those experts; None: the routers choose."""
    if routing is None:
        yield
        return
    with replaying(model, routing[:, :-1]) as tally:
        yield
    if rerouted is not None:
        rerouted.changed += tally.changed
        rerouted.total += tally.total


def _body(model: Any) -> Body | None:
    """Our own blocks, where they compute what the model's do."""
    if not is_plain(model):
        return None
    if model not in _BODIES:
        body = Body.of(model)
        _BODIES[model] = body if body is not None and _body_agrees(model, body) else None
    return _BODIES[model]


def _hidden_states(model: Any, input_ids: Tensor) -> Tensor:
    """[B, T, H] after the last block and norm: by our own blocks where they compute the same, else by transformers'."""
    body = _body(model)
    if body is not None:
        return body.hidden_states(model, input_ids)
    hidden: Tensor = model.base_model(input_ids=input_ids, use_cache=False).last_hidden_state
    return hidden


@torch.no_grad()
def _body_agrees(model: Any, body: Body) -> bool:
    """Both compute the same on a few tokens; a configuration may have what its family does not."""
    ids = (torch.arange(24) * 7919 % model.config.vocab_size).view(3, 8)
    wanted = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    return bool((body.hidden_states(model, ids) - wanted).abs().max() <= 1e-4 * wanted.abs().max())


def _has_plain_head(model: Any) -> bool:
    """The logits are the output embeddings' product with the last hidden state, no more; proved once a model."""
    if model not in _PROVED:
        named = any(getattr(model.config, name, None) not in (None, 1, 1.0) for name in PLAIN_HEAD_BLOCKERS)
        _PROVED[model] = not named and _head_agrees(model)
    return _PROVED[model]


@torch.no_grad()
def _head_agrees(model: Any) -> bool:
    """Some architectures have a layer between hidden state and head: on four tokens that shows."""
    ids = (torch.arange(4, device=model.device) * 7919 % model.config.vocab_size)[None]
    was_training = model.training
    model.eval()
    wanted = model(input_ids=ids, use_cache=False).logits.float()
    found = model.get_output_embeddings()(model.base_model(input_ids=ids, use_cache=False).last_hidden_state).float()
    model.train(was_training)
    tolerance = 2e-2 if model.dtype in (torch.bfloat16, torch.float16) else 1e-4
    return bool(wanted.shape == found.shape and (wanted - found).abs().max() <= tolerance * wanted.abs().max())


def spread(values: Tensor, where: Tensor) -> Tensor:
    """[B, T] with `values` [N] at the True entries of `where`, row by row, and 0 elsewhere; keeps the gradient."""
    out = torch.zeros(where.shape, dtype=values.dtype, device=values.device)
    return out.masked_scatter(where, values)
