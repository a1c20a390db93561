"""Next-token logits at chosen positions only: the vocabulary product is not paid for prompts and padding."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pipeline.errors import ConfigError
from pipeline.models.body import Body, is_plain
from pipeline.models.packed import packed_states
from pipeline.models.routing import Tally, replaying

PLAIN_HEAD_BLOCKERS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")
"""Settings that bend or scale the logits: a proof on small weights might not see them."""

_BODIES: weakref.WeakKeyDictionary[Any, Body | None] = weakref.WeakKeyDictionary()
_PROVED: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


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
    if routing is not None:
        _has_plain_head(model)  # its proof is a forward of its own
        with replaying(model, routing[:, :-1]) as tally:
            logits = logits_at(model, input_ids, where)
        if rerouted is not None:
            rerouted.changed += tally.changed
            rerouted.total += tally.total
        return logits
    if where[:, 0].any():
        raise ValueError("the first token of a row has nothing before it that could predict it")
    shifted = where[:, 1:]
    if lengths is not None:
        return _packed_logits(model, input_ids, shifted, lengths)
    if not _has_plain_head(model):
        whole: Tensor = model(input_ids=input_ids[:, :-1], use_cache=False).logits[shifted]
        return whole
    hidden = _hidden_states(model, input_ids[:, :-1])
    picked: Tensor = model.get_output_embeddings()(hidden[shifted])
    return picked


def _packed_logits(model: Any, input_ids: Tensor, shifted: Tensor, lengths: Sequence[int]) -> Tensor:
    """Logits [N, V] at `shifted` [B, T - 1], of rows without padding: their last tokens predict nothing."""
    if not _has_plain_head(model):
        raise ConfigError(
            f"packing: the head of model type {model.config.model_type!r} is more than a product; set packing: false"
        )
    before = [n - 1 for n in lengths if n > 1]
    real = torch.arange(shifted.shape[1])[None] < torch.tensor([n - 1 for n in lengths])[:, None]
    real = real.to(input_ids.device)
    ids, body = input_ids[:, :-1][real], _body(model)
    hidden = packed_states(model, ids, before) if body is None else body.packed_states(model, ids, before)
    picked: Tensor = model.get_output_embeddings()(hidden[shifted[real]])
    return picked


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
