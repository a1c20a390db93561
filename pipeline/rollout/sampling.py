"""Draw tokens from logits by given uniform numbers: a row's draw depends on its own logits and number only."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline.rollout.engine import Sampling


def pick(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Return tokens int64 [B] and their log-probs [B], by inverting the cumulative distribution at `uniforms`.

    logits: float32 [B, V]; uniforms: float64 [B] in [0, 1). With top_k or top_p the log-probs are those of the
    distribution cut off, renormalised. A token of probability zero is never drawn.
    """
    if sampling.temperature == 0:
        logprobs = logits.log_softmax(-1)
        tokens = logits.argmax(-1)
        return tokens, logprobs.gather(1, tokens[:, None])[:, 0]
    scaled = _scaled(logits, sampling)
    if sampling.is_cut:
        scaled = cut_off(scaled, sampling.top_k, sampling.top_p)
    return _draw(scaled, uniforms)


@dataclass(frozen=True, slots=True)
class Kept:
    """The tokens that could be drawn: bool [B, V]; and the rows of which `max_kept` left out some: bool [B]."""

    possible: Tensor
    bounded: Tensor


Draw = Callable[[Tensor, Tensor, Sampling], tuple[Any, ...]]
"""`pick` or `pick_kept`."""


def pick_kept(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor, Kept]:
    """Return tokens and log-probs as `pick`, and the set drawn from: at most the `max_kept` most likely tokens."""
    cut = cut_off(_scaled(logits, sampling), sampling.top_k, sampling.top_p)
    # Bounded before the draw: log-probs are then of the set that is recorded.
    bounded = (cut > -math.inf).sum(1) > sampling.max_kept
    if bool(bounded.any()):
        cut = most_likely(cut, sampling.max_kept)
    tokens, logprobs = _draw(cut, uniforms)
    return tokens, logprobs, Kept(cut > -math.inf, bounded)


def _scaled(logits: Tensor, sampling: Sampling) -> Tensor:
    return logits if sampling.temperature == 1 else logits / sampling.temperature


def _draw(logits: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    logprobs = logits.log_softmax(-1)
    # float64: over a large vocabulary a float32 sum would lose the tail.
    cumulative = logprobs.double().exp_().cumsum_(-1)
    # Numbers are scaled by the sum, which is 1 only up to rounding. `right` passes over tokens of probability zero.
    tokens = torch.searchsorted(cumulative, uniforms[:, None] * cumulative[:, -1:], right=True)[:, 0]
    # The number times the sum may round up to the sum itself, which lies behind the last token.
    tokens.clamp_(max=logits.shape[1] - 1)
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def cut_off(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """Return logits with -inf outside the top_k tokens, then outside the smallest set of probability >= top_p.

    Tokens as likely as the last of the top_k stay too: their place in the vocabulary does not decide.
    """
    if 0 < top_k < logits.shape[1]:
        # Compared by value, so that ties stay.
        least = logits.topk(top_k, -1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -math.inf)
    if top_p < 1:
        ordered, order = logits.sort(stable=True, dim=-1, descending=True)
        # A token stays if the more likely ones do not reach top_p without it: the first always does.
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        # Scattering undoes the sort: from order of probability to order of vocabulary.
        dropped = torch.zeros_like(before, dtype=torch.bool).scatter(1, order, before >= top_p)
        logits = logits.masked_fill(dropped, -math.inf)
    return logits


def most_likely(logits: Tensor, most: int) -> Tensor:
    """Return logits with -inf outside the `most` likeliest tokens; of equal ones the first in the vocabulary stay."""
    if most >= logits.shape[1]:
        return logits
    dropped = logits.sort(stable=True, dim=-1, descending=True).indices[:, most:]
    return logits.scatter(1, dropped, -math.inf)


def uniforms(seeds: list[int], count: int, device: torch.device) -> Tensor:
    """Return float64 [count, B]: column b is the stream of seeds[b]."""
    # Drawn on the CPU: a GPU's generator gives other numbers for the same seed.
    columns = [torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in seeds]
    return torch.stack(columns, 1).to(device)
