"""Slow doubles of pipeline/preferences: floats and loops over token lists, straight from the formulas. No tensors."""

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


def apart(w: Side, r: Side, length_average: bool = False) -> float:
    """The chosen side's log-ratio less the rejected one's."""
    n_w, n_l = (len(w.lp), len(r.lp)) if length_average else (1, 1)
    return w.h / n_w - r.h / n_l


def dpo(
    w: Side,
    r: Side,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
    nll_coef: float = 0.0,
    length_average: bool = False,
) -> float:
    p = sigmoid(beta * apart(w, r, length_average))
    return -(1 - label_smoothing) * math.log(p) - label_smoothing * math.log(1 - p) - nll_coef * w.mean


def robust(w: Side, r: Side, beta: float = 0.1, label_smoothing: float = 0.1) -> float:
    right, wrong = dpo(w, r, beta), dpo(r, w, beta)
    return ((1 - label_smoothing) * right - label_smoothing * wrong) / (1 - 2 * label_smoothing)


def hinge(w: Side, r: Side, beta: float = 0.1) -> float:
    return max(0.0, 1 - beta * apart(w, r))


def exo(w: Side, r: Side, beta: float = 0.1, label_smoothing: float = 1e-3) -> float:
    """KL(q || p) of the choice between the two responses."""
    q = sigmoid(beta * apart(w, r))
    target = [1 - label_smoothing, label_smoothing]
    return sum(a * math.log(a / b) for a, b in zip([q, 1 - q], target, strict=True))


def ipo(w: Side, r: Side, beta: float = 0.1, length_average: bool = True) -> float:
    return (apart(w, r, length_average) - 1 / (2 * beta)) ** 2


def apo_zero(w: Side, r: Side, beta: float = 0.1) -> float:
    return 1 - sigmoid(beta * w.h) + sigmoid(beta * r.h)


def apo_down(w: Side, r: Side, beta: float = 0.1) -> float:
    return sigmoid(beta * w.h) + 1 - sigmoid(beta * (w.h - r.h))


def sppo(w: Side, r: Side, beta: float = 1e-3) -> float:
    """The paper's (log ratio - eta (P - 1/2))^2 with eta = 1 / beta, P = 1 and P = 0."""
    return sum((side.h - (wins - 0.5) / beta) ** 2 for side, wins in ((w, 1), (r, 0)))


def bco(w: Side, r: Side, beta: float = 0.1, shift: float = 0.0) -> float:
    return -math.log(sigmoid(beta * w.h - shift)) - math.log(1 - sigmoid(beta * r.h - shift))


def discopop(w: Side, r: Side, beta: float = 0.1, tau: float = 0.05) -> float:
    m = beta * apart(w, r)
    mix = sigmoid(m / tau)
    return -(1 - mix) * math.log(sigmoid(m)) + mix * math.exp(-m)


def nca(w: Side, r: Side, beta: float = 0.1) -> float:
    def classified(side: Side, share: float) -> float:
        """The share of the response among the answers asked for, and 1/2 of it among the reference's."""
        p = sigmoid(beta * side.h)
        return -share * math.log(p) - 0.5 * math.log(1 - p)

    return classified(w, 1) + classified(r, 0)


def cpo(
    w: Side, r: Side, beta: float = 0.1, label_smoothing: float = 0.0, nll_coef: float = 1.0, summed: bool = False
) -> float:
    """With `summed` the likelihood is the paper's."""
    p = sigmoid(beta * (sum(w.lp) - sum(r.lp)))
    likelihood = nll_coef * (sum(w.lp) if summed else w.mean)
    return -(1 - label_smoothing) * math.log(p) - label_smoothing * math.log(1 - p) - likelihood


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


PAIRWISE: dict[str, Callable[..., float]] = {
    "apo_down": apo_down,
    "apo_zero": apo_zero,
    "bco": bco,
    "cpo": cpo,
    "discopop": discopop,
    "dpo": dpo,
    "exo": exo,
    "hinge": hinge,
    "ipo": ipo,
    "nca": nca,
    "orpo": orpo,
    "robust": robust,
    "simpo": simpo,
    "sppo": sppo,
}


def mean_loss(name: str, chosen: Sequence[Side], rejected: Sequence[Side], z: float, params: dict[str, Any]) -> float:
    """The loss of an optimiser step; with `shifted` BCO's rewards are taken off their mean over both sides."""
    if params.get("shifted"):
        rest = {k: v for k, v in params.items() if k != "shifted"}
        both = [rest.get("beta", 0.1) * side.h for side in (*chosen, *rejected)]
        return mean_loss(name, chosen, rejected, z, {**rest, "shift": sum(both) / len(both)})
    if name == "kto":
        return kto(chosen, rejected, z, **params)
    if name == "apo_zero_unpaired":
        return kto(chosen, rejected, 0.0, **params)
    each = [PAIRWISE[name](w, r, **params) for w, r in zip(chosen, rejected, strict=True)]
    return sum(each) / len(each)
