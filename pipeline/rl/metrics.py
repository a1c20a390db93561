"""Statistics of one update, as sums that add over micro-batches and ranks, and the metrics made of them."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from verizero.pipeline.rl.ratios import LOG_RATIO_LIMIT, exp_clamped, k3
from verizero.pipeline.rl.reduce import masked, masked_sum

# The order is the layout of the vector: `observe` writes it, `summarize_stats` reads it, on all ranks alike.
SUMS = (
    "loss",
    "policy_loss",
    "kl_loss",
    "entropy_loss",
    "tokens",
    "sequences",
    "filtered_tokens",
    "ratio",
    "clamped",
    "clip_low",
    "clip_high",
    "old_k3",
    "ref_tokens",
    "ref_k1",
    "ref_k3",
    "ref_capped",
    "entropy",
    "entropy_tokens",
    "surprise",
    "weight",
    "weight_sq",
    "gen_tokens",
    "gen_k1",
    "gen_k3",
    "gen_abs",
    "stale_tokens",
    "stale_abs",
    "drop_off_policy",
    "drop_mismatch",
    "drop_low_entropy",
    "drop_selected",
    "drop_rejected",
    "drop_stopped",
)
_PER_DECADE = 24
_SMALLEST = 1e-7
# Up to 40, twice LOG_RATIO_LIMIT.
_EDGES = [_SMALLEST * 10 ** (k / _PER_DECADE) for k in range(int(_PER_DECADE * math.log10(40 / _SMALLEST)) + 1)]
NUM_BINS = 2 * len(_EDGES) + 1
"""Bins of log ratio: symmetric about 0, 24 a decade from 1e-7, so that a quantile is right to 10% of its logarithm."""
NUM_STATS = len(SUMS) + 2 * NUM_BINS  # sums, histogram of log-ratios, histogram of |log pi_old - log pi_gen|


@dataclass(frozen=True, slots=True)
class Observed:
    """Inputs of the statistics of one micro-batch. All are [B, T] but the losses and `sequences`."""

    losses: dict[str, Tensor]
    mask: Tensor
    sequences: Tensor
    """[B] bool: rows that count a response."""
    filtered: Tensor
    logprobs: Tensor
    old_logprobs: Tensor
    """The ratio's denominator."""
    own_old_logprobs: Tensor
    """The trainer's, from before the batch's first update."""
    log_ratio: Tensor
    advantages: Tensor
    clip: tuple[float, float]
    """Log-ratios below the first (A < 0) and above the second (A > 0) count as clipped."""
    ref_logprobs: Tensor | None
    rollout_logprobs: Tensor | None
    entropy: Tensor | None
    stale: Tensor | None
    """[B] bool: responses of an older policy; None: there are none."""
    drops: dict[str, Tensor]
    kl_capped: Tensor | None
    """Tokens whose KL in the loss is at its cap; None without a cap."""


@torch.no_grad()
def observe(x: Observed) -> Tensor:
    """Return the statistics of one micro-batch, a float64 vector that adds over micro-batches and ranks."""
    mask, log_ratio = x.mask, x.log_ratio.expand(x.mask.shape)
    drift = x.logprobs - x.old_logprobs  # per token, whatever the level of the ratio
    # Weights of the effective sample size compare to the distribution that was sampled from.
    weight = exp_clamped(x.logprobs - (x.old_logprobs if x.rollout_logprobs is None else x.rollout_logprobs))
    values: dict[str, Tensor] = {
        **x.losses,
        "tokens": mask.sum(),
        "sequences": x.sequences.sum(),
        "filtered_tokens": x.filtered.sum(),
        "ratio": masked_sum(exp_clamped(log_ratio), mask),
        "clamped": (mask & (log_ratio.abs() > LOG_RATIO_LIMIT)).sum(),
        # A side clips only the sign of A whose objective it bounds; see `surrogates.clip`.
        "clip_low": (mask & (log_ratio < x.clip[0]) & (x.advantages < 0)).sum(),
        "clip_high": (mask & (log_ratio > x.clip[1]) & (x.advantages > 0)).sum(),
        "old_k3": masked_sum(k3(drift), mask),
        "weight": masked_sum(weight, mask),
        "weight_sq": masked_sum(weight.double() ** 2, mask),
    }
    if x.ref_logprobs is not None:
        d = x.ref_logprobs - x.logprobs
        # Tokens are counted again: a mean is over those for which its input was observed.
        values |= {"ref_tokens": mask.sum(), "ref_k1": -masked_sum(d, mask), "ref_k3": masked_sum(k3(d), mask)}
        if x.kl_capped is not None:
            values["ref_capped"] = (mask & x.kl_capped).sum()
    if x.rollout_logprobs is not None:
        # The trainer's own: the ratio's may be the engine's, on stale rows, and would differ by nothing.
        d = x.own_old_logprobs - x.rollout_logprobs
        # On stale rows the difference is that of two policies too: the engine's error shows on fresh rows only.
        stale = torch.zeros_like(mask) if x.stale is None else mask & x.stale.unsqueeze(1)
        fresh = mask & ~stale
        values |= {"gen_tokens": fresh.sum(), "gen_k1": -masked_sum(d, fresh), "gen_k3": masked_sum(k3(d), fresh)}
        values["gen_abs"] = masked_sum(d.abs(), fresh)
        values |= {"stale_tokens": stale.sum(), "stale_abs": masked_sum(d.abs(), stale)}
        apart = _histogram(d.abs(), fresh)
    else:
        apart = torch.zeros(NUM_BINS, dtype=torch.float64, device=mask.device)
    if x.entropy is not None:
        values |= {"entropy": masked_sum(x.entropy, mask), "entropy_tokens": mask.sum()}
        values["surprise"] = -masked_sum(x.logprobs, mask)
    values |= {f"drop_{why}": (mask & dropped).sum() for why, dropped in x.drops.items()}
    # One nought for all that was not observed: each number of the host would be a copy to the device of its own.
    nought = torch.zeros((), dtype=torch.float64, device=mask.device)
    sums = [values[name].to(torch.float64) if name in values else nought for name in SUMS]
    return torch.cat([torch.stack(sums), _histogram(log_ratio, mask), apart])


def summarize_stats(stats: Tensor) -> dict[str, float]:
    """Return the metrics of one update, from the sum of its micro-batches' statistics over all ranks.

    A metric whose input was not observed (a reference, an entropy, engine log-probs) is absent, not 0. `mismatch/*`
    compares the trainer at batch start to the engine on fresh rows, and is absent if all are stale: `mismatch/stale` is
    the share of tokens of an older policy, `mismatch/stale_abs` their difference, updates included. Quantiles of the
    ratio and of |log-prob by the engine - by the trainer| come from histograms: they are right to 10% of their
    logarithm, and differences below 1e-7 count as 0. All numbers are 0 for an update without tokens.
    """
    row = dict(zip(SUMS, stats[: len(SUMS)].tolist(), strict=True))
    tokens = max(row["tokens"], 1.0)
    out = {
        "loss/total": row["loss"],
        "loss/policy": row["policy_loss"],
        "loss/kl": row["kl_loss"],
        "loss/entropy": row["entropy_loss"],
        "tokens/trained": row["tokens"],
        "sequences/trained": row["sequences"],
        "ratio/mean": row["ratio"] / tokens,
        "ratio/clamped": row["clamped"] / tokens,
        "clip_fraction/low": row["clip_low"] / tokens,
        "clip_fraction/high": row["clip_high"] / tokens,
        "policy_kl/k3": row["old_k3"] / tokens,
        # Effective sample size as a share of the tokens: (sum w)^2 / (n sum w^2).
        "ess": row["weight"] ** 2 / (row["weight_sq"] * tokens) if row["weight_sq"] > 0 else 0.0,
        "masked/overlong": row["filtered_tokens"] / max(row["tokens"] + row["filtered_tokens"], 1.0),
    }
    out |= {f"masked/{name.removeprefix('drop_')}": row[name] / tokens for name in SUMS if name.startswith("drop_")}
    if row["ref_tokens"]:
        out |= {f"kl/{name}": row[f"ref_{name}"] / row["ref_tokens"] for name in ("k1", "k3", "capped")}
    if row["gen_tokens"] or row["stale_tokens"]:
        out["mismatch/stale"] = row["stale_tokens"] / (row["gen_tokens"] + row["stale_tokens"])
    if row["stale_tokens"]:
        out["mismatch/stale_abs"] = row["stale_abs"] / row["stale_tokens"]
    if row["gen_tokens"]:
        apart = stats[len(SUMS) + NUM_BINS :]
        out |= {f"mismatch/{name}": row[f"gen_{name}"] / row["gen_tokens"] for name in ("k1", "k3", "abs")}
        # `_quantile` answers exp of the logarithm; here the logarithm is wanted.
        out |= {f"mismatch/p{q:02d}": abs(math.log(_quantile(apart, q / 100))) for q in (50, 90, 99)}
    if row["entropy_tokens"]:
        out["entropy"] = row["entropy"] / row["entropy_tokens"]
        # Equal to the entropy on average, if the tokens were drawn from the policy that trains and from nothing else.
        out["surprise"] = row["surprise"] / row["entropy_tokens"]
    histogram = stats[len(SUMS) : len(SUMS) + NUM_BINS]
    return out | {f"ratio/p{q:02d}": _quantile(histogram, q / 100) for q in (1, 50, 99)}


@functools.cache
def _edges_on(device: torch.device) -> Tensor:
    """Return the edges of the bins; copied to the device once, because the host waits for each copy."""
    return torch.tensor([-e for e in reversed(_EDGES)] + _EDGES, dtype=torch.float64, device=device)


def _histogram(log_ratio: Tensor, mask: Tensor) -> Tensor:
    # Tokens outside the mask fall into the middle bin, with weight 0.
    bins = torch.bucketize(masked(log_ratio, mask).double().flatten(), _edges_on(mask.device))
    return torch.zeros(NUM_BINS, dtype=torch.float64, device=mask.device).index_add(
        0, bins, mask.flatten().to(torch.float64)
    )


def _quantile(histogram: Tensor, q: float) -> float:
    total = float(histogram.sum())
    if total == 0:
        return 0.0
    index = int(torch.searchsorted(histogram.cumsum(0), q * total))  # first bin that reaches the share
    middle = len(_EDGES)  # the bin of |log ratio| < _SMALLEST, which counts as 0
    if index == middle:
        return 1.0
    # Index of the bin's edge that is nearer to 0; the two sides mirror each other.
    inner = index - middle - 1 if index > middle else middle - 1 - index
    # The middle of the bin on a logarithmic scale; the last bin, beyond all edges, has no middle.
    size = min(_EDGES[min(inner, len(_EDGES) - 1)] * 10 ** (0.5 / _PER_DECADE), 2 * LOG_RATIO_LIMIT)
    return math.exp(math.copysign(size, index - middle))
