"""Slow doubles of pipeline/preferences: floats and loops over token lists, straight from the formulas. No tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass
class Side:
    """One response: log-probs of its tokens, of the policy and of the reference."""

    lp: list[float]
    ref: list[float]

    @property
    def h(self) -> float:
        return sum(self.lp) - sum(self.ref)

    @property
    def mean(self) -> float:
        return sum(self.lp) / len(self.lp)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def dpo(w: Side, r: Side, beta: float = 0.1, label_smoothing: float = 0.0, nll_coef: float = 0.0) -> float:
    p = sigmoid(beta * (w.h - r.h))
    return -(1 - label_smoothing) * math.log(p) - label_smoothing * math.log(1 - p) - nll_coef * w.mean


def ipo(w: Side, r: Side, beta: float = 0.1, length_average: bool = True) -> float:
    n_w, n_l = (len(w.lp), len(r.lp)) if length_average else (1, 1)
    return (w.h / n_w - r.h / n_l - 1 / (2 * beta)) ** 2


def orpo(w: Side, r: Side, beta: float = 0.1) -> float:
    def odds(side: Side) -> float:
        p = math.exp(side.mean)
        return p / (1 - p)

    return -w.mean - beta * math.log(sigmoid(math.log(odds(w) / odds(r))))


def simpo(w: Side, r: Side, beta: float = 2.0, gamma: float = 1.0, label_smoothing: float = 0.0) -> float:
    p = sigmoid(beta * w.mean - beta * r.mean - gamma)
    return -(1 - label_smoothing) * math.log(p) - label_smoothing * math.log(1 - p)


def kto(
    good: Sequence[Side],
    bad: Sequence[Side],
    z: float,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> float:
    """The mean over all responses. `z` is given: it has no gradient."""
    each = [desirable_weight * (1 - sigmoid(beta * (s.h - z))) for s in good]
    each += [undesirable_weight * (1 - sigmoid(beta * (z - s.h))) for s in bad]
    return sum(each) / len(each)


def divergence(mismatched: Sequence[Side]) -> float:
    """z of prompts with the responses of others."""
    return max(0.0, sum(s.h for s in mismatched) / len(mismatched))


PAIRWISE: dict[str, Callable[..., float]] = {"dpo": dpo, "ipo": ipo, "orpo": orpo, "simpo": simpo}


def mean_loss(name: str, chosen: Sequence[Side], rejected: Sequence[Side], z: float, params: dict[str, Any]) -> float:
    """The loss of an optimiser step."""
    if name == "kto":
        return kto(chosen, rejected, z, **params)
    each = [PAIRWISE[name](w, r, **params) for w, r in zip(chosen, rejected, strict=True)]
    return sum(each) / len(each)
