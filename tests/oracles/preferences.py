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
    weight: float = 1.0
    """Of WPO: it has no gradient, so that it stays where a test moves `lp`."""

    @property
    def h(self) -> float:
        return sum(self.lp) - sum(self.ref)

    @property
    def mean(self) -> float:
        return sum(self.lp) / len(self.lp)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def wpo_weight(lp: Sequence[float], distributions: Sequence[Sequence[float]]) -> float:
    """WPO's weight of a response, from its log-probs and the probabilities of the whole vocabulary at each token."""
    product = 1.0
    for x, p in zip(lp, distributions, strict=True):
        product *= math.exp(x) / sum(q * q for q in p)
    return float(product ** (1 / len(lp)))


def slope(h: float, f_divergence: str = "reverse_kl", f_alpha: float | None = None) -> float:
    """f'(u) of the ratio u = exp(h), shifted to be 0 at u = 1."""
    u = math.exp(h)
    if f_divergence == "forward_kl":
        return 1 - 1 / u
    if f_divergence == "js_divergence":
        return math.log(2 * u / (1 + u))
    if f_divergence == "alpha_divergence" and f_alpha != 1:
        assert f_alpha is not None
        return float(u ** (f_alpha - 1) - 1) / (f_alpha - 1)
    return math.log(u)


def shortened(side: Side, other: Side, ld_alpha: float) -> float:
    """h of the side, in which its tokens beyond the length of the other one count `ld_alpha`."""
    each = [a - b for a, b in zip(side.lp, side.ref, strict=True)]
    return sum(each[: len(other.lp)]) + ld_alpha * sum(each[len(other.lp) :])


def apart(w: Side, r: Side, length_average: bool = False, ld_alpha: float = 1.0, **divergence: Any) -> float:
    """The chosen side's slope less the rejected one's."""
    n_w, n_l = (len(w.lp), len(r.lp)) if length_average else (1, 1)
    h_w, h_l = shortened(w, r, ld_alpha), shortened(r, w, ld_alpha)
    return slope(h_w, **divergence) / n_w - slope(h_l, **divergence) / n_l


def dpo(
    w: Side, r: Side, beta: float = 0.1, label_smoothing: float = 0.0, nll_coef: float = 0.0, **given: Any
) -> float:
    p = sigmoid(beta * apart(w, r, **given))
    return -(1 - label_smoothing) * math.log(p) - label_smoothing * math.log(1 - p) - nll_coef * w.mean


def robust(w: Side, r: Side, beta: float = 0.1, label_smoothing: float = 0.1, **given: Any) -> float:
    right, wrong = dpo(w, r, beta, **given), dpo(r, w, beta, **given)
    return ((1 - label_smoothing) * right - label_smoothing * wrong) / (1 - 2 * label_smoothing)


def hinge(w: Side, r: Side, beta: float = 0.1, **given: Any) -> float:
    return max(0.0, 1 - beta * apart(w, r, **given))


def exo(w: Side, r: Side, beta: float = 0.1, label_smoothing: float = 1e-3, **given: Any) -> float:
    """KL(q || p) of the choice between the two responses."""
    q = sigmoid(beta * apart(w, r, **given))
    target = [1 - label_smoothing, label_smoothing]
    return sum(a * math.log(a / b) for a, b in zip([q, 1 - q], target, strict=True))


def ipo(w: Side, r: Side, beta: float = 0.1, length_average: bool = True, **given: Any) -> float:
    return (apart(w, r, length_average, **given) - 1 / (2 * beta)) ** 2


def apo_zero(w: Side, r: Side, beta: float = 0.1) -> float:
    return 1 - sigmoid(beta * w.h) + sigmoid(beta * r.h)


def apo_down(w: Side, r: Side, beta: float = 0.1) -> float:
    return sigmoid(beta * w.h) + 1 - sigmoid(beta * (w.h - r.h))


def sppo(w: Side, r: Side, beta: float = 1e-3) -> float:
    """The paper's (log ratio - eta (P - 1/2))^2 with eta = 1 / beta, P = 1 and P = 0."""
    return sum((side.h - (wins - 0.5) / beta) ** 2 for side, wins in ((w, 1), (r, 0)))


def bco(w: Side, r: Side, beta: float = 0.1, shift: float = 0.0) -> float:
    return -math.log(sigmoid(beta * w.h - shift)) - math.log(1 - sigmoid(beta * r.h - shift))


def discopop(w: Side, r: Side, beta: float = 0.1, tau: float = 0.05, **given: Any) -> float:
    m = beta * apart(w, r, **given)
    mix = sigmoid(m / tau)
    return -(1 - mix) * math.log(sigmoid(m)) + mix * math.exp(-m)


def mpo(
    w: Side, r: Side, losses: Sequence[dict[str, Any]] | None = None, nll_coef: float = 1.0, shift: float = 0.0
) -> float:
    total = 0.0
    for term in losses or [{"name": "dpo", "weight": 0.8}, {"name": "bco", "weight": 0.2}]:
        rest = {k: v for k, v in term.items() if k not in ("name", "weight")}
        rest |= {"shift": shift} if term["name"] == "bco" else {}
        total += term.get("weight", 1.0) * PAIRWISE[term["name"]](w, r, **rest)
    return total - nll_coef * w.mean


def aot(chosen: Sequence[Side], rejected: Sequence[Side], beta: float = 0.1, label_smoothing: float = 0.0) -> float:
    """The k-th smallest margin of the policy against the k-th smallest of the reference, for all k."""
    pairs = list(zip(chosen, rejected, strict=True))
    ours = sorted(sum(w.lp) - sum(r.lp) for w, r in pairs)
    theirs = sorted(sum(w.ref) - sum(r.ref) for w, r in pairs)
    each = [sigmoid(beta * (a - b)) for a, b in zip(ours, theirs, strict=True)]
    return sum(-(1 - label_smoothing) * math.log(p) - label_smoothing * math.log(1 - p) for p in each) / len(each)


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
    "mpo": mpo,
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
    if name == "aot":
        return aot(chosen, rejected, **params)
    rest = {k: v for k, v in params.items() if k != "wpo"}
    each = [PAIRWISE[name](w, r, **rest) for w, r in zip(chosen, rejected, strict=True)]
    if params.get("wpo"):
        each = [value * w.weight * r.weight for value, w, r in zip(each, chosen, rejected, strict=True)]
    return sum(each) / len(each)
