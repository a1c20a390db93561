"""Reward models of pairs: the Bradley-Terry loss, and how far its probabilities can be believed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def bradley_terry_loss(chosen: Tensor, rejected: Tensor, total: float) -> Tensor:
    """sum over pairs of -log sigmoid(r_w - r_l), divided by `total`, the pairs of the whole optimiser step.

    chosen, rejected: rewards [B]. Computed in float32 or wider.
    Source: arXiv:2203.02155 eq. 1, for one pair a prompt.
    """
    margin = chosen.to(torch.promote_types(chosen.dtype, torch.float32)) - rejected
    return -F.logsigmoid(margin).sum() / total


def pair_accuracy(margins: Tensor) -> float:
    """Share of pairs [N] whose chosen side has the higher reward; an equal one counts half. NaN for none."""
    if not len(margins):
        return float("nan")
    return float(((margins > 0).double() + 0.5 * (margins == 0).double()).mean())


def calibration_error(margins: Tensor, bins: int = 10) -> float:
    """Expected calibration error of sigmoid(|margin|), the confidence in the side that is preferred. NaN for none.

    margins: [N], chosen minus rejected. The mean over pairs of |share right - mean confidence| of their bin; bins are
    equal parts of [0.5, 1].
    """
    if not len(margins):
        return float("nan")
    confidence = torch.sigmoid(margins.double().abs())
    right = (margins > 0).double() + 0.5 * (margins == 0).double()
    which = ((confidence - 0.5) * 2 * bins).long().clamp(max=bins - 1)
    off = torch.zeros(bins, dtype=torch.float64).index_add_(0, which, right - confidence)
    return float(off.abs().sum() / len(margins))
