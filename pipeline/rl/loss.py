"""The loss of each micro-batch from the parts of the objective, its denominators and its statistics.

The loss of a micro-batch is its share of the optimiser step's: given the totals counted over the step, the shares add
up to the loss of the whole step, on any number of micro-batches and ranks. Of the corrections (engine mismatch,
off-policy sequences, truncated responses) only the overlong filter changes a denominator: it counts a truncated
response as no response at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.rl import ratios, reduce
from verizero.pipeline.rl.catalog import load
from verizero.pipeline.rl.episodes import Shares, sequences_of
from verizero.pipeline.rl.logprobs import working
from verizero.pipeline.rl.metrics import Observed, observe, summarize_stats
from verizero.pipeline.rl.parts import Parts, PolicyParams
from verizero.pipeline.rl.ratios import LOG_RATIO_LIMIT, binary_kl, estimate_kl, exp_clamped, k3
from verizero.pipeline.rl.reduce import divide, masked, masked_sum, sequence_mean
from verizero.pipeline.rl.surrogates import SurrogateInputs


@dataclass(frozen=True, slots=True)
class Counts:
    """The denominators of one optimiser step, over all micro-batches and ranks: sums of `count_denominators`."""

    tokens: float = 0.0
    """Response tokens that train."""
    sequences: float = 0.0
    """Responses with at least one such token; an episode of several turns or rows is one."""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """One micro-batch. [B, T] values outside `response_mask` may be anything, infinite and NaN included."""

    logprobs: Tensor
    """With gradient."""
    advantages: Tensor
    response_mask: Tensor
    old_logprobs: Tensor | None = None
    """The trainer's, from before the batch's first update. None for one update: they are `logprobs`, detached."""
    ref_logprobs: Tensor | None = None
    rollout_logprobs: Tensor | None = None
    entropy: Tensor | None = None
    """With gradient where there is an entropy bonus."""
    truncated: Tensor | None = None
    high_entropy: Tensor | None = None
    """[B, T] bool from `selection.select_tokens`: tokens to train on."""
    selected: Tensor | None = None
    """[B, T] bool from `selection.select_tokens`: tokens of high covariance."""
    stale: Tensor | None = None
    """[B] bool: responses of an older policy. None: there are none."""
    shares: Shares | None = None
    """The part of its episode that each row is; None where every row is a whole episode."""


@dataclass(frozen=True, slots=True)
class LossOutput:
    """This micro-batch's share of the loss, and its statistics: a float64 vector that adds."""

    loss: Tensor
    stats: Tensor


def count_denominators(
    parts: Parts, response_mask: Tensor, truncated: Tensor | None = None, shares: Shares | None = None
) -> Tensor:
    """Return the counts of one micro-batch, float64 [2] in the order of `Counts`, to be added before any backward.

    Rows without a trained token count nowhere.
    """
    mask = training_mask(parts, response_mask, truncated)
    # Tensors, not numbers: the host would wait for the device at each micro-batch.
    return torch.stack([mask.sum().double(), sequences_of(mask, shares).sum().double()])


def policy_loss(parts: Parts, inputs: LossInputs, totals: Counts) -> LossOutput:
    """Return this micro-batch's share of the loss to minimise: -objective + kl - entropy bonus.

    `totals` are the counts of the whole optimiser step. The entropy bonus is a mean over tokens under every
    aggregation, so that its coefficient means the same everywhere.

    Raises: DataError for a missing input.
    """
    response_mask = inputs.response_mask > 0
    mask = training_mask(parts, inputs.response_mask, inputs.truncated)
    # From here on every [B, T] is 0 outside the mask, so that no ratio or product there is infinite or NaN.
    logprobs = masked(working(inputs.logprobs), mask)
    own_old = _old_logprobs(parts, inputs, logprobs, mask)
    ref, gen = _optional(inputs.ref_logprobs, mask), _optional(inputs.rollout_logprobs, mask)
    old = ratio_logprobs(parts, inputs.stale, own_old, gen)
    advantages = masked(working(inputs.advantages), mask).detach()
    weight, drops = _weights(parts, inputs, mask, (logprobs.detach(), own_old, gen, advantages), old)
    # A ratio or a mean over the response must not read dropped tokens: they would get a gradient through it.
    mask_without_drops = mask & (weight != 0)
    log_ratio = load(parts.ratio_entry.log_ratio)(logprobs, old, mask_without_drops)
    selected = None if inputs.selected is None else inputs.selected > 0
    surrogate = SurrogateInputs(logprobs, log_ratio, advantages, mask_without_drops, selected)
    objective = parts.surrogate.function(surrogate, **parts.surrogate.options)  # [B, T] or [B, 1]
    if (entry := parts.surrogate_entry) is not None and entry.tokens_without_gradient is not None:
        drops["stopped"] = load(entry.tokens_without_gradient)(surrogate, **parts.surrogate.options)
    if objective.shape != weight.shape:
        weight = response_weight(weight, mask_without_drops)
    # A dropped token's objective may be infinite, and 0 * inf is NaN.
    weighted = torch.where(weight != 0, objective * weight, torch.zeros_like(objective * weight))
    kl_by_token = _kl_by_token(parts, logprobs, ref, old, mask) if parts.params.kl_place == "loss" else None
    losses = {"policy_loss": -_aggregate(parts, weighted, mask, totals, inputs)}
    losses |= _terms(parts, inputs, mask, totals, kl_by_token)
    loss = torch.stack(list(losses.values())).sum()
    observed = Observed(
        losses={"loss": loss, **losses},
        mask=mask,
        sequences=sequences_of(mask, inputs.shares),
        filtered=response_mask & ~mask,  # by the overlong filter
        logprobs=logprobs,
        old_logprobs=old,
        own_old_logprobs=own_old,
        log_ratio=log_ratio,
        advantages=advantages,
        clip=clip_range(parts),
        ref_logprobs=ref,
        rollout_logprobs=gen,
        entropy=_optional(inputs.entropy, mask),
        stale=inputs.stale,
        drops=drops,
        kl_capped=None if kl_by_token is None or parts.params.kl_cap is None else kl_by_token >= parts.params.kl_cap,
    )
    return LossOutput(loss, observe(observed))


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
    # `clip` (geometric_mean) bounds the log-ratio; the other two bound the ratio itself.
    if isinstance(both, (int, float)):
        return -float(both), float(both)
    lowest = math.log1p(-low) if isinstance(low, (int, float)) and low < 1 else -math.inf
    cap = options.get("ratio_cap")  # bounds the ratio from above alone
    highest = math.log(cap) if isinstance(cap, (int, float)) else math.inf
    return lowest, math.log1p(high) if isinstance(high, (int, float)) else highest


def ratio_logprobs(parts: Parts, stale: Tensor | None, own_old: Tensor, gen: Tensor | None) -> Tensor:
    """Return [B, T] log-probs of the policy that the ratio compares to.

    With `decoupled` that is the trainer's policy at batch start on every row, and the weights compare that policy to
    the one that sampled (arXiv:2110.00641; arXiv:2505.24298). With `bypass` it is pi_gen on stale rows.
    """
    if stale is None or parts.params.mismatch_stale == "decoupled":
        return own_old
    if gen is None:
        raise DataError("responses of an older policy need rollout_logprobs, got None; pass what the engine reported")
    return torch.where(stale.unsqueeze(1), gen, own_old)


def _weights(
    parts: Parts, inputs: LossInputs, mask: Tensor, logs: tuple[Tensor, Tensor, Tensor | None, Tensor], old: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the weight of each token [B, T], 0 if it is dropped, and the dropped tokens [B, T] bool by reason.

    `logs`: current log-probs, the trainer's old ones, the engine's, and the advantages. Mismatch weights use `old`, the
    log-probs that the ratio compares to: where these are of pi_gen the weights are 1. Rules that drop tokens compare
    the trainer's own old policy with pi_gen.
    """
    current, own_old, gen, advantages = logs
    weight = torch.ones_like(current)
    drops: dict[str, Tensor] = {}
    if parts.needs_rollout_logprobs and gen is None:
        raise DataError("this algorithm needs rollout_logprobs, got None; pass what the engine reported")
    # A token that is dropped for two reasons counts under both.
    if parts.params.mismatch_level != "none" and gen is not None:
        weight = mismatch_weights(parts.params, old, gen, mask).expand(weight.shape)  # [B, 1] -> [B, T]
        drops["mismatch"] = weight == 0
    masks: dict[str, Tensor] = {}  # False on the tokens to drop, by reason
    if parts.params.criteria and gen is not None:
        masks["rejected"] = rejection_keep(parts.params.criteria, own_old, gen, mask)
    if parts.params.off_policy_delta is not None and gen is not None:
        masks["off_policy"] = off_policy_keep(current, gen, advantages, mask, parts.params.off_policy_delta)
    if parts.params.high_entropy_share is not None:
        masks["low_entropy"] = _required(inputs.high_entropy, "high_entropy_share", "high_entropy")
    for reason, mask_of_reason in masks.items():
        weight, drops[reason] = masked(weight, mask_of_reason), ~mask_of_reason
    if parts.surrogate_selects:
        drops["selected"] = _required(inputs.selected, f"surrogate {parts.surrogate.label!r}", "selected")
    return weight, drops


def _required(tokens: Tensor | None, what: str, name: str) -> Tensor:
    if tokens is None:
        raise DataError(f"{what} needs {name}, got None; call selection.select_tokens")
    return tokens > 0


def _aggregate(parts: Parts, x: Tensor, mask: Tensor, totals: Counts, inputs: LossInputs) -> Tensor:
    return reduce.aggregate(
        parts.aggregate,
        x,
        mask,
        tokens=totals.tokens,
        sequences=totals.sequences,
        norm_length=parts.norm_length,
        lengths=None if inputs.shares is None else inputs.shares.lengths,
    )


def _terms(
    parts: Parts, inputs: LossInputs, mask: Tensor, totals: Counts, kl_by_token: Tensor | None
) -> dict[str, Tensor]:
    """Return the terms of the loss besides the objective, by name. `kl_by_token`: [B, T]."""
    losses = {}
    if kl_by_token is not None:
        # The KL counts every trained token: no importance weights, nothing dropped.
        losses["kl_loss"] = parts.params.kl_coef * _aggregate(parts, kl_by_token, mask, totals, inputs)
    if parts.params.entropy_coef != 0:
        if inputs.entropy is None:
            raise DataError("an entropy bonus needs entropy [B, T], got None; see logprobs.logprobs_and_entropy")
        mean_entropy = reduce.divide(masked_sum(working(inputs.entropy), mask), totals.tokens)
        losses["entropy_loss"] = -parts.params.entropy_coef * mean_entropy
    return losses


def _kl_by_token(parts: Parts, logprobs: Tensor, ref: Tensor | None, old: Tensor, mask: Tensor) -> Tensor:
    if ref is None:
        raise DataError("kl in the loss needs ref_logprobs, got None; run the reference over the batch")
    # Over the whole mask: the KL counts tokens that the objective drops.
    log_ratio = load(parts.ratio_entry.log_ratio)(logprobs, old, mask) if parts.params.kl_form == "k3_ratio" else None
    return estimate_kl(parts.params.kl_form, logprobs, ref, old, parts.params.kl_cap, log_ratio)


def _old_logprobs(parts: Parts, inputs: LossInputs, logprobs: Tensor, mask: Tensor) -> Tensor:
    if inputs.old_logprobs is not None:
        return masked(working(inputs.old_logprobs), mask).detach()
    if not parts.ratio_entry.is_one and parts.params.num_updates > 1:
        raise DataError("several updates on one batch need old_logprobs, got None; compute them at batch start")
    # The first update on a batch: the ratio is 1, and its gradient that of log pi.
    return logprobs.detach()


def _optional(x: Tensor | None, mask: Tensor) -> Tensor | None:
    return None if x is None else masked(working(x), mask).detach()


def training_mask(parts: Parts, response_mask: Tensor, truncated: Tensor | None) -> Tensor:
    """Return the tokens that train, [B, T] bool; none of truncated responses under the overlong filter.

    Raises: ConfigError if the filter is on and `truncated` [B] is None.
    Source: arXiv:2503.14476.
    """
    mask = response_mask > 0
    if not parts.params.overlong_filter:
        return mask
    if truncated is None:
        raise ConfigError("overlong_filter needs `truncated` [B], got None; pass the batch's")
    return mask & ~truncated.bool().unsqueeze(1)


def mismatch_weights(params: PolicyParams, old_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Return weights pi_old / pi_gen, [B, T] or [B, 1], no gradient: truncated to [floor, cap], or 0 outside it.

    The weight is per token, the product over the response, or that product's length-th root.

    Source: truncated, F. Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training";
    masked, arXiv:2510.18855 (IcePop).
    """
    # For a ratio, "sequence" is the mean over the response; for a mismatch, the sum.
    levels = {"token": ratios.token, "sequence": ratios.sequence_product, "geometric": ratios.sequence}
    weights = exp_clamped(levels[params.mismatch_level](old_logprobs, rollout_logprobs, mask)).detach()
    floor, cap = params.mismatch_floor, params.mismatch_cap
    if params.mismatch_action == "truncate":
        return weights.clamp(floor, cap)
    return masked(weights, (weights >= floor) & (weights <= cap))


def off_policy_keep(
    logprobs: Tensor, rollout_logprobs: Tensor, advantages: Tensor, mask: Tensor, delta: float
) -> Tensor:
    """Return [B, T] bool: False where A < 0 and the response's mean of log pi_gen - log pi is above delta.

    A stale good answer still trains; a stale bad answer, which the policy would hardly give any more, does not. pi_gen
    is as the engine reported it, so that staleness and mismatch count together. A response at delta is kept.

    Source: arXiv:2512.02556 section 3.1.
    """
    drift = sequence_mean(rollout_logprobs - logprobs.detach(), mask)
    # drift [B, 1] is of the response, the sign of A [B, T] of the token: some estimators give both within one response.
    return (advantages >= 0) | (drift <= delta)


def rejection_keep(
    criteria: tuple[tuple[str, float, float], ...], old_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor
) -> Tensor:
    """Return [B, T] bool: False where a criterion of pi_old against pi_gen is outside its bounds.

    A criterion is `<reduction>_<estimator>`, a name of `catalog.REJECTIONS`. With x = log(pi_old / pi_gen), the
    estimators of the divergence are k1 = -x, k2 = x^2 / 2 and k3 = exp(x) - x - 1, and binary_kl that from pi_gen to
    pi_old between a token and all others; `token` judges each token, `sum`, `mean` and `max` the response. All criteria
    must pass. A value at its bound is kept.

    Source: the rejection modes of verl's rollout correction, with the same names; its bounds of k1 are ratios, ours
    are values of k1. The mean of binary_kl: FlashREINFORCE's sequence trust region.
    """
    keep = mask
    x = (old_logprobs - rollout_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    for name, low, high in criteria:
        reduction, _, estimator = name.partition("_")
        if estimator == "binary_kl":
            value = masked(binary_kl(rollout_logprobs, old_logprobs), mask)
        else:
            value = masked({"k1": -x, "k2": x**2 / 2, "k3": k3(x)}[estimator], mask)
        if reduction == "sum":
            value = masked_sum(value, mask, dim=1).unsqueeze(1)
        elif reduction == "mean":
            value = sequence_mean(value, mask)
        elif reduction == "max":  # no estimator with a maximum is negative, so 0 outside the mask is harmless
            value = value.amax(dim=1, keepdim=True)
        keep = keep & (value >= low) & (value <= high)
    return keep


def response_weight(weights: Tensor, mask: Tensor) -> Tensor:
    """Return one weight per response [B, 1], for an objective with one value per response.

    It is the geometric mean of the weights over the mask, where they are positive; 0 for an empty mask.
    """
    logs = masked(torch.where(mask, weights, torch.ones_like(weights)).log(), mask)
    mean = divide(logs.sum(dim=1), mask.sum(dim=1).to(logs.dtype)).exp().unsqueeze(1)
    return masked(mean, mask.any(dim=1, keepdim=True))
