"""Log-probs and entropies from hidden states, some tokens at a time, so that all logits never exist at once.

The logits of a chunk are computed again in the backward, which costs one more product with the output embeddings. On
CUDA a kernel computes the chunks (`kernels.log_probs`); this is its twin, for every device and case.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from verizero.pipeline.models import kernels
from verizero.pipeline.rl.logprobs import check_scoring, pull_rows, score_rows


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
        both: tuple[Tensor, Tensor] = _Head.apply(  # type: ignore[no-untyped-call]
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


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        kept: Tensor | None,
        chunk_tokens: int,
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        picked = torch.empty(len(hidden), dtype=dtype, device=hidden.device)
        normaliser, entropy = torch.empty_like(picked), torch.empty_like(picked)
        for rows in _chunks(len(hidden), chunk_tokens):
            logits = F.linear(hidden[rows], weight, bias).to(dtype)
            cut = None if kept is None else kept[rows]
            picked[rows], normaliser[rows], entropy[rows] = score_rows(logits, targets[rows], temperature, cut)
        ctx.save_for_backward(hidden, weight, bias, targets, normaliser, entropy, kept)
        ctx.temperature, ctx.chunk_tokens = temperature, chunk_tokens
        ctx.set_materialize_grads(False)
        return picked, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, pull: Tensor | None, spread: Tensor | None = None) -> tuple[Tensor | None, ...]:
        if pull is None and spread is None:
            return (None,) * 7
        hidden, weight, bias, targets, normaliser, entropy, kept = ctx.saved_tensors
        pull = torch.zeros_like(normaliser) if pull is None else pull
        to_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        to_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        to_bias = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[2] else None
        for rows in _chunks(len(hidden), ctx.chunk_tokens):
            pulled = pull_rows(
                F.linear(hidden[rows], weight, bias).to(normaliser.dtype),
                targets[rows],
                ctx.temperature,
                None if kept is None else kept[rows],
                (normaliser[rows], entropy[rows]),
                pull[rows],
                None if spread is None else spread[rows],
            ).to(weight.dtype)
            if to_hidden is not None:
                to_hidden[rows] = pulled @ weight
            if to_weight is not None:
                to_weight.addmm_(pulled.t(), hidden[rows])
            if to_bias is not None:
                to_bias += pulled.sum(0)
        return to_hidden, to_weight, to_bias, None, None, None, None


def _chunks(num: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, num, size)]
