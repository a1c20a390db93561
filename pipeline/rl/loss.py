"""The loss of each micro-batch from the parts of the objective, its denominators and its statistics.

The loss of a micro-batch is its share of the optimiser step's: given the totals counted over the step, the shares add
up to the loss of the whole step, on any number of micro-batches and ranks.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from pipeline.errors import DataError
from pipeline.rl import kl, reduce
from pipeline.rl.corrections import mismatch_weights, off_policy_keep, training_mask
from pipeline.rl.logprobs import working
from pipeline.rl.metrics import Observed, observe, summarize_stats
from pipeline.rl.parts import Parts
from pipeline.rl.ratios import log_ratio
from pipeline.rl.reduce import masked, masked_sum
from pipeline.rl.surrogates import SurrogateInputs


@dataclass(frozen=True, slots=True)
class Counts:
    """The denominators of one optimiser step: add those of all micro-batches and ranks before any backward."""

    tokens: float = 0.0
    """Response tokens that train."""
    sequences: float = 0.0
    """Responses with at least one such token."""

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.tokens + other.tokens, self.sequences + other.sequences)

    def to_list(self) -> list[float]:
        """Return the numbers in order, to be summed over ranks; `Counts(*numbers)` is the inverse."""
        return list(astuple(self))


@dataclass(frozen=True, slots=True)
class LossInputs:
    """One micro-batch. [B, T] values outside `response_mask` may be anything, infinite and NaN included."""

    logprobs: Tensor
    """With gradient."""
    advantages: Tensor
    response_mask: Tensor
    old_logprobs: Tensor | None = None
    """None only if the batch is used for one update: then they are `logprobs`, detached."""
    ref_logprobs: Tensor | None = None
    rollout_logprobs: Tensor | None = None
    entropy: Tensor | None = None
    """With gradient where there is an entropy bonus."""
    truncated: Tensor | None = None
    high_entropy: Tensor | None = None
    """[B, T] bool from `selection.select_tokens`: tokens to train on."""
    selected: Tensor | None = None
    """[B, T] bool from `selection.select_tokens`: tokens of high covariance."""


@dataclass(frozen=True, slots=True)
class LossOutput:
    """This micro-batch's share of the loss, and its statistics: a float64 vector that adds."""

    loss: Tensor
    stats: Tensor


def count(parts: Parts, response_mask: Tensor, truncated: Tensor | None = None) -> Counts:
    """Return the counts of one micro-batch. Rows without a trained token count nowhere."""
    mask = training_mask(parts, response_mask, truncated)
    return Counts(float(mask.sum()), float(mask.any(dim=1).sum()))


def policy_loss(
    parts: Parts,
    inputs: LossInputs,
    totals: Counts,
    *,
    kl_coef: float | None = None,
    entropy_coef: float | None = None,
) -> LossOutput:
    """Return this micro-batch's share of the loss to minimise: -objective + kl - entropy bonus.

    `totals` are the counts of the whole optimiser step. `kl_coef` and `entropy_coef` replace the parts' own. The
    entropy bonus is a mean over tokens under every aggregation, so that its coefficient means the same everywhere.

    Raises: DataError for a missing input.
    """
    everything = inputs.response_mask > 0
    mask = training_mask(parts, inputs.response_mask, inputs.truncated)
    # From here on every [B, T] is 0 outside the mask, so that no ratio or product there is infinite or NaN.
    logprobs = masked(working(inputs.logprobs), mask)
    old = _old_logprobs(parts, inputs, logprobs, mask)
    ref, gen = _optional(inputs.ref_logprobs, mask), _optional(inputs.rollout_logprobs, mask)
    advantages = masked(working(inputs.advantages), mask).detach()
    ratio = log_ratio(parts.ratio, logprobs, old, mask)
    surrogate = SurrogateInputs(logprobs, ratio, advantages, mask, _flag(inputs.selected))
    objective = parts.surrogate.function(surrogate, **parts.surrogate.options)
    weight, drops = _weights(parts, inputs, surrogate, old, gen)
    # A dropped token's objective may be infinite, and 0 * inf is NaN.
    elements = torch.where(weight != 0, objective * weight, torch.zeros_like(objective * weight))
    losses = {"policy_loss": -_aggregate(parts, elements, mask, totals)}
    if parts.kl.where == "loss":
        if ref is None:
            raise DataError("kl in the loss needs ref_logprobs, got None; run the reference over the batch")
        beta = parts.kl.coef if kl_coef is None else kl_coef
        # Neither weights nor drops apply: the KL holds back every token of the mask.
        estimate = kl.estimate(parts.kl.form, logprobs, ref, old)
        losses["kl_loss"] = beta * _aggregate(parts, estimate, mask, totals)
    bonus = parts.terms.entropy_coef if entropy_coef is None else entropy_coef
    if bonus != 0:
        losses["entropy_loss"] = -bonus * _mean_entropy(inputs.entropy, mask, totals)
    loss = torch.stack(list(losses.values())).sum()
    seen = Observed(
        losses={"loss": loss, **losses},
        mask=mask,
        filtered=everything & ~mask,  # by the overlong filter
        logprobs=logprobs,
        old_logprobs=old,
        log_ratio=ratio,
        advantages=advantages,
        clip=clip_range(parts),
        ref_logprobs=ref,
        rollout_logprobs=gen,
        entropy=_optional(inputs.entropy, mask),
        drops=drops,
    )
    return LossOutput(loss, observe(seen))


def summarize(stats: Tensor, totals: Counts) -> dict[str, float]:
    """Return the metrics of one update from the sum of its statistics over micro-batches and ranks.

    Raises: DataError if the statistics were not summed over the same tokens as the totals.
    """
    out = summarize_stats(stats)
    if out["tokens/trained"] != totals.tokens:
        raise DataError(
            f"statistics hold {out['tokens/trained']:g} tokens but the denominator counted {totals.tokens:g}; "
            "sum both over the same micro-batches and ranks"
        )
    return out


def ptx_loss(logprobs: Tensor, text_mask: Tensor, total_tokens: float, coef: float) -> Tensor:
    """Return coef times this micro-batch's share of the mean negative log-likelihood of text, a term of the loss.

    Source: arXiv:2203.02155 eq. 2; arXiv:2507.20534 section 3.2.3.
    """
    return -coef * reduce.divide(masked_sum(working(logprobs), text_mask > 0), total_tokens)


def clip_range(parts: Parts) -> tuple[float, float]:
    """Return the (lowest, highest) log-ratio that the surrogate does not clip; infinite on a side without a clip."""
    options = parts.surrogate.options
    low, high, both = options.get("clip_low"), options.get("clip_high"), options.get("clip")
    # `clip` (geometric_mean) is a log-ratio already; the other two bound the ratio itself.
    if isinstance(both, (int, float)):
        return -float(both), float(both)
    lowest = math.log1p(-low) if isinstance(low, (int, float)) and low < 1 else -math.inf
    return lowest, math.log1p(high) if isinstance(high, (int, float)) else math.inf


def _weights(
    parts: Parts, inputs: LossInputs, x: SurrogateInputs, old: Tensor, gen: Tensor | None
) -> tuple[Tensor, dict[str, Tensor]]:
    weight = torch.ones_like(x.logprobs.detach())
    drops: dict[str, Tensor] = {}
    if parts.needs_rollout_logprobs and gen is None:
        raise DataError("this algorithm needs rollout_logprobs, got None; pass what the engine reported")
    # `drops` has each reason by itself: a token that falls under two of them counts under both.
    if parts.mismatch.level != "none" and gen is not None:
        weight = mismatch_weights(parts.mismatch, old, gen, x.mask).expand(weight.shape)  # [B, 1] -> [B, T]
        drops["mismatch"] = weight == 0
    if parts.masks.off_policy_delta is not None and gen is not None:
        keep = off_policy_keep(x.logprobs, gen, x.advantages, x.mask, parts.masks.off_policy_delta)
        weight, drops["off_policy"] = masked(weight, keep), ~keep
    if parts.masks.high_entropy_share is not None:
        if inputs.high_entropy is None:
            raise DataError("masks.high_entropy_share needs high_entropy, got None; call selection.select_tokens")
        keep = inputs.high_entropy > 0
        weight, drops["low_entropy"] = masked(weight, keep), ~keep
    if x.selected is not None:
        drops["selected"] = x.selected
    elif parts.surrogate_selects:
        raise DataError(f"surrogate {parts.surrogate.label!r} needs selected, got None; call selection.select_tokens")
    return weight, drops


def _aggregate(parts: Parts, x: Tensor, mask: Tensor, totals: Counts) -> Tensor:
    return reduce.aggregate(
        parts.aggregate, x, mask, tokens=totals.tokens, sequences=totals.sequences, norm_length=parts.norm_length
    )


def _mean_entropy(entropy: Tensor | None, mask: Tensor, totals: Counts) -> Tensor:
    if entropy is None:
        raise DataError("an entropy bonus needs entropy [B, T], got None; see logprobs.logprobs_and_entropy")
    return reduce.divide(masked_sum(working(entropy), mask), totals.tokens)


def _old_logprobs(parts: Parts, inputs: LossInputs, logprobs: Tensor, mask: Tensor) -> Tensor:
    if inputs.old_logprobs is not None:
        return masked(working(inputs.old_logprobs), mask).detach()
    if parts.ratio != "none" and parts.updates.num_epochs * parts.updates.num_minibatches > 1:
        raise DataError("several updates on one batch need old_logprobs, got None; compute them at batch start")
    # The first update on a batch: the ratio is 1, and its gradient that of log pi.
    return logprobs.detach()


def _optional(x: Tensor | None, mask: Tensor) -> Tensor | None:
    return None if x is None else masked(working(x), mask).detach()


def _flag(x: Tensor | None) -> Tensor | None:
    return None if x is None else x > 0
