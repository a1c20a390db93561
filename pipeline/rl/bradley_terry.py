"""Reward models of pairs: the Bradley-Terry loss, and the calibration of its probabilities."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def bradley_terry_loss(chosen: Tensor, rejected: Tensor, total: float) -> Tensor:
    """Return the sum over pairs of -log sigmoid(r_w - r_l), divided by `total`, the pairs of the whole optimiser step.

    chosen, rejected: rewards [B]. Computed in float32 or wider.
    Source: arXiv:2203.02155 eq. 1, for one pair a prompt.
    """
    # Rewards of half precision are subtracted in float32 (`rejected` is promoted): only the small difference counts.
    margin = chosen.to(torch.promote_types(chosen.dtype, torch.float32)) - rejected
    return -F.logsigmoid(margin).sum() / total


def pair_accuracy(margins: Tensor) -> float:
    """Return the share of pairs [N] whose chosen side has the higher reward; ties count half. NaN for no pairs."""
    if not len(margins):
        return float("nan")
    return float(((margins > 0).double() + 0.5 * (margins == 0).double()).mean())


def calibration_error(margins: Tensor, bins: int = 10) -> float:
    """Return the expected calibration error of sigmoid(|margin|), the confidence in the preferred side.

    It is the mean over pairs of |share right - mean confidence| of their bin, with bins of equal width over [0.5, 1].
    margins: [N], chosen minus rejected; NaN for no pairs.
    """
    if not len(margins):
        return float("nan")
    confidence = torch.sigmoid(margins.double().abs())
    right = (margins > 0).double() + 0.5 * (margins == 0).double()
    which = ((confidence - 0.5) * 2 * bins).long().clamp(max=bins - 1)  # confidence 1 falls into the last bin
    # In a bin of n pairs, n |share right - mean confidence| = |sum of (right - confidence)|.
    off = torch.zeros(bins, dtype=torch.float64).index_add_(0, which, right - confidence)
    return float(off.abs().sum() / len(margins))
