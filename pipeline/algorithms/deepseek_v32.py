"""DeepSeek-V3.2: GRPO without the spread, unbiased KL, off-policy sequence mask, routing and sampling mask kept."""

from __future__ import annotations

from pipeline.algorithms.base import (
    ClipHigh,
    ClipLow,
    Delta,
    KeepRouting,
    KeepSampling,
    KlCoef,
    KlFormName,
    KlIn,
    PolicyParams,
)
from pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2512.02556 section 3.1"
DEPARTURES: tuple[str, ...] = (
    "delta and the KL coefficient have no number in the paper; 0.1 nats a token and 0.001 are ours",
    "the reference is taken over the kept sampling set and routes by itself; the paper says nothing of it",
)


class Params(PolicyParams):
    """DeepSeek-V3.2's numbers."""

    clip_low: ClipLow = 0.2
    clip_high: ClipHigh = 0.2
    kl_in: KlIn = "loss"
    kl_form: KlFormName = "k3_unbiased"
    kl_coef: KlCoef = 0.001
    off_policy_delta: Delta = 0.1
    keep_routing: KeepRouting = True
    keep_sampling: KeepSampling = True


def parts(params: Params) -> Parts:
    """DeepSeek-V3.2's parts."""
    return Parts(
        advantage=Part("group_mean"),
        ratio="token",
        surrogate=Part("clip", {"clip_low": params.clip_low, "clip_high": params.clip_high}),
        aggregate="sequence_mean_token_mean",
        **params.rest(),
    )
