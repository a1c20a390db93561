"""Hinge: the margin of SLiC on RSO's log-ratios; a pair that is apart by 1 / beta trains no more."""

from __future__ import annotations

from verizero.pipeline.preferences.base import Losses, MarginParams, Sides, scores

SOURCE = "arXiv:2309.06657 (hinge-norm), after SLiC, arXiv:2305.10425"
DEPARTURES: tuple[str, ...] = (
    "SLiC compares log-probs and adds a likelihood term; this compares log-ratios and has none, as RSO and TRL",
)


class Params(MarginParams):
    """Hinge's numbers."""


def loss(params: Params, sides: Sides) -> Losses:
    """Return max(0, 1 - beta (h_w - h_l)); h is the log-ratio."""
    rewards = scores(params, sides).times(params.beta)
    return rewards.losses((1 - rewards.margin).relu())
