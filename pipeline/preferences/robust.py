"""Robust DPO: DPO's loss without the bias of pairs that are the wrong way round at random."""

from __future__ import annotations

from verizero.pipeline.preferences.base import LabelSmoothing, Losses, MarginParams, Sides, minus_log_sigmoid, scores

SOURCE = "arXiv:2403.00409"
DEPARTURES: tuple[str, ...] = ()


class Params(MarginParams):
    """Robust DPO's numbers."""

    label_smoothing: LabelSmoothing = 0.1


def loss(params: Params, sides: Sides) -> Losses:
    """Return (-(1 - e) log sigmoid(m) + e log sigmoid(-m)) / (1 - 2e), m = beta (h_w - h_l), e = label_smoothing.

    If a share e of the pairs is swapped at random, its expectation is that of DPO on the pairs as they should be. A
    smoothed `dpo` adds the second term, and so asks for margins that are not too sure; this one takes it away.
    """
    rewards, noise = scores(params, sides).times(params.beta), params.label_smoothing
    right, wrong = minus_log_sigmoid(rewards.margin), minus_log_sigmoid(-rewards.margin)
    return rewards.losses(((1 - noise) * right - noise * wrong) / (1 - 2 * noise))
