"""Next-token logits and log-probs at chosen positions only: the vocabulary product is not paid for the rest.

Log-probs can be computed from some logits at a time, which are made again in the backward: so many exist at once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models import kernels, runs
from verizero.pipeline.models.proof import agree, evaluating, packs, probe_ids
from verizero.pipeline.models.routing import Rerouted, replaying
from verizero.pipeline.models.runs import Runs
from verizero.pipeline.rl.logprobs import ChunkedScores, check_scoring, logprobs_and_entropy

PLAIN_HEAD_BLOCKERS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")
"""Settings that bend or scale the logits: a proof on small weights might not see them."""

CHUNK_ON_GPU = 1024
"""`train.logits_chunk_tokens: auto` on a GPU."""

_PROVED: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Replay:
    """Choices of the sampling that a forward repeats. None: nothing was recorded."""

    kept: Tensor | None = None
    """int64 [N, K]: for each of the N tokens asked for, row by row, the tokens it was drawn among; padded with -1. A
    row of only -1 is the whole vocabulary."""
    routing: Tensor | None = None
    """int16 [B, T, layers, top_k]: the experts of each token; -1 where none were recorded."""


@dataclass(frozen=True, slots=True)
class Targets:
    """The tokens of rows [B, T] whose log-probs are asked for."""

    at: Tensor
    """int64 [N]: their places among B * T, row by row."""
    runs: Runs | None = None
    """Rows lie one after another, and tokens that they share are computed once. None: rows with their padding."""

    def tensors(self) -> list[Tensor]:
        """Return all tensors, in the order in which `with_tensors` takes them."""
        return [self.at, *([] if self.runs is None else self.runs.tensors())]

    def with_tensors(self, tensors: Iterator[Tensor]) -> Targets:
        """Return the same targets with other tensors, such as copies on a device; they are taken from the iterator."""
        return Targets(next(tensors), None if self.runs is None else self.runs.with_tensors(tensors))


@dataclass(frozen=True, slots=True)
class Layout:
    """The way in which a forward is computed; its results do not depend on it, but for rounding."""

    targets: Targets | None = None
    """The tokens at `where`, if the host knows them, and how rows are packed. None: rows are padded, and the host waits
    for a GPU that looks for the tokens."""
    chunk_tokens: int | Literal["auto"] | None = None
    """At most so many rows of logits exist at once; None: all; auto: as `train.logits_chunk_tokens` says."""


def logprobs_at(
    model: Any,
    input_ids: Tensor,
    where: Tensor,
    temperature: float,
    entropy: bool = False,
    *,
    replay: Replay = Replay(),
    rerouted: Rerouted | None = None,
    layout: Layout = Layout(),
) -> tuple[Tensor, Tensor | None]:
    """Return log-probs [B, T] in float32 of the tokens at `where`, 0 elsewhere, and their entropies if asked for.

    The arguments that are not described here: see `logits_at`.

    Raises: ConfigError if the output layer cannot be computed in chunks.
    """
    known = _known(where, layout.targets)
    targets = input_ids.flatten().index_select(0, known.at)
    entropies: Tensor | None
    size = _chunk_size(model, layout, input_ids.device)
    if size is None:
        logits = logits_at(model, input_ids, where, replay.routing, rerouted, known)
        values, entropies = logprobs_and_entropy(logits, targets, temperature, replay.kept)
    else:
        if not _has_plain_head(model):
            raise ConfigError(
                f"train.logits_chunk_tokens={layout.chunk_tokens}: model type {model.config.model_type!r} does more "
                "than one product between its last hidden state and its logits; set it to null"
            )
        with _routed(model, replay.routing, rerouted, known.runs):
            hidden = states_before(model, input_ids, where, known)
        head = model.get_output_embeddings()
        values, entropies = head_logprobs(head, hidden, targets, temperature, replay.kept, size, entropy)
    spreads = spread(entropies, where, known.at) if entropy and entropies is not None else None
    return spread(values, where, known.at), spreads


def _chunk_size(model: Any, layout: Layout, device: torch.device) -> int | None:
    """Return how many rows of logits may exist at once; None: all."""
    if layout.chunk_tokens != "auto":
        return layout.chunk_tokens
    return CHUNK_ON_GPU if device.type == "cuda" and _has_plain_head(model) else None


def logits_at(
    model: Any,
    input_ids: Tensor,
    where: Tensor,
    routing: Tensor | None = None,
    rerouted: Rerouted | None = None,
    targets: Targets | None = None,
) -> Tensor:
    """Return logits [N, V] that predict the tokens at `where` (bool [B, T], False at column 0), row by row.

    input_ids: int64 [B, T], right-padded. `routing` [B, T, layers, top_k]: the experts to use (`routing.replaying`);
    choices that the routers would have made differently are added to `rerouted`. `targets`: as in `Layout`, with runs
    only for a model that `can_pack`.
    """
    # No attention mask: with causal attention, padding on the right does not reach the tokens before it, and without a
    # mask the fastest attention kernels apply.
    is_plain_head = _has_plain_head(model)  # before `_routed`: its proof is a forward of its own
    with _routed(model, routing, rerouted, None if targets is None else targets.runs):
        if is_plain_head:
            hidden = states_before(model, input_ids, where, targets)
            picked: Tensor = model.get_output_embeddings()(hidden)
            return picked
        _check_first(where)
        whole: Tensor = model(input_ids=input_ids[:, :-1], use_cache=False).logits[where[:, 1:]]
        return whole


def states_at(model: Any, input_ids: Tensor, where: Tensor, targets: Targets | None = None) -> Tensor | None:
    """Return hidden states [N, H] whose product with the output embeddings are the logits that predict `where`.

    None for a model whose head is more than a product; `logits_at` has its logits, and the arguments.
    """
    return states_before(model, input_ids, where, targets) if _has_plain_head(model) else None


def can_pack(model: Any) -> bool:
    """True if rows of the model may be packed; tried on a few tokens at the first call."""
    return _has_plain_head(model) and packs(model)


def states_before(model: Any, input_ids: Tensor, where: Tensor, targets: Targets | None = None) -> Tensor:
    """Return [N, H] states after the last block and norm from which the tokens at `where` are predicted, row by row."""
    _check_first(where)
    known = _known(where, targets)
    if known.runs is not None:
        tokens, place = input_ids.flatten().index_select(0, known.runs.source), known.runs.place.flatten()
        # A token is predicted from the one before it, which is next to it among B * T.
        return runs.states(model, tokens, known.runs).index_select(0, place.index_select(0, known.at - 1))
    hidden: Tensor = model.base_model(input_ids=input_ids[:, :-1], use_cache=False).last_hidden_state
    # In rows of T - 1, that of column 0 is left out: one for each row up to the token's own.
    return hidden.flatten(0, 1).index_select(0, known.at - 1 - known.at // where.shape[1])


def _known(where: Tensor, targets: Targets | None) -> Targets:
    """Return the tokens at `where`, which the host waits for unless it knows them."""
    return Targets(where.flatten().nonzero()[:, 0]) if targets is None else targets


def _check_first(where: Tensor) -> None:
    # On a GPU the host would wait here at each micro-batch, and every caller's tests run on the CPU.
    if where.device.type == "cpu" and where[:, 0].any():
        raise ValueError("the first token of a row has nothing before it that could predict it")


@contextmanager
def _routed(model: Any, routing: Tensor | None, rerouted: Rerouted | None, runs: Runs | None = None) -> Iterator[None]:
    """Within the block, a forward over all but the last tokens uses those experts; None: the routers choose.

    `runs`: the forward is over their tokens, of which each is counted once for every row that has it.
    """
    if routing is None:
        yield
        return
    wanted, num_rows = routing[:, :-1], None
    if runs is not None:
        is_known = wanted[:, :, 0, 0] >= 0
        num_rows = torch.bincount(runs.place[:, :-1][is_known], minlength=len(runs.source))
        wanted = routing.flatten(0, 1).index_select(0, runs.source)[None]
    with replaying(model, wanted, num_rows) as counted:
        yield
    if rerouted is not None:
        rerouted.changed += counted.changed
        rerouted.total += counted.total


def _has_plain_head(model: Any) -> bool:
    """True if the logits are the output embeddings' product with the last hidden state; proved once for each model."""
    if model not in _PROVED:
        bends = any(getattr(model.config, name, None) not in (None, 1, 1.0) for name in PLAIN_HEAD_BLOCKERS)
        _PROVED[model] = not bends and _head_agrees(model)
    return _PROVED[model]


def _head_agrees(model: Any) -> bool:
    """True if no layer is between hidden state and head, as some architectures have; four tokens show it."""
    ids = probe_ids(model, 1, 4)
    with evaluating(model):
        theirs = model(input_ids=ids, use_cache=False).logits
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        return agree(model.get_output_embeddings()(hidden), theirs)


def spread(values: Tensor, where: Tensor, at: Tensor | None = None) -> Tensor:
    """Return [B, T] with `values` [N] at the True entries of `where`, row by row, and 0 elsewhere; keeps gradients.

    `at`: the places of those entries, int64 [N]. Without them the backward lets the host wait for a GPU.
    """
    out = torch.zeros(where.shape, dtype=values.dtype, device=values.device)
    if at is None:
        return out.masked_scatter(where, values)
    width = where.shape[1]
    return out.index_put((at // width, at % width), values)  # no view, which FSDP does not want of a forward


def head_logprobs(
    head: Any,
    hidden: Tensor,
    targets: Tensor,
    temperature: float,
    kept: Tensor | None,
    chunk_tokens: int,
    entropy: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Return log-probs of the targets [N] under the logits head(hidden), and entropies [N] if asked for, in float32.

    hidden [N, H]; at most `chunk_tokens` rows of logits exist at once, or as many numbers of the kernel. `kept`: as for
    `logprobs_and_entropy`.

    Raises: ConfigError unless temperature > 0; DataError if a target is not in its own kept set.
    """
    check_scoring(targets, temperature, kept)

    def compute(states: Tensor) -> tuple[Tensor, ...]:
        if kept is None and _is_for_the_kernel(states, head.weight, head.bias):
            from verizero.pipeline.models.kernels.log_probs import SCRATCH_ELEMENTS, log_probs

            scratch = min(SCRATCH_ELEMENTS, chunk_tokens * len(head.weight))
            values, spread = log_probs(states, head.weight, targets, temperature, entropy, scratch=scratch)
            return (values,) if spread is None else (values, spread)
        both: tuple[Tensor, Tensor] = ChunkedScores.apply(  # type: ignore[no-untyped-call]
            states, head.weight, head.bias, targets, temperature, kept, chunk_tokens
        )
        return both if entropy else both[:1]

    values, *entropies = call_as_forward(head, compute, hidden)
    return values, entropies[0] if entropies else None


def _is_for_the_kernel(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """True if the kernel is wanted on this device, computes this output layer, and was proved here."""
    if not kernels.wanted(hidden.device):
        return False
    from verizero.pipeline.models.kernels.log_probs import fits, is_proved

    return fits(hidden, weight, bias) and is_proved(hidden.device, hidden.dtype)


def call_as_forward(module: Any, compute: Callable[..., Any], *inputs: Tensor) -> Any:
    """Call compute(*inputs) in place of the module's own forward, so that its hooks gather sharded weights."""
    before = module.__dict__.get("forward")
    module.forward = compute
    try:
        return module(*inputs)
    finally:
        if before is None:
            del module.forward
        else:
            module.forward = before
