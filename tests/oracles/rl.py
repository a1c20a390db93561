"""Slow doubles of pipeline/rl: floats, lists and loops over ragged rows, straight from the formulas. No tensors.

Where a formula holds a value still (sg), the double reads `row.still` in place of `row.lp`, so that a finite difference
over `lp` is the gradient that training must see.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass
class Row:
    """One response: only its trained tokens, no padding."""

    lp: list[float]
    old: list[float]
    ref: list[float]
    gen: list[float]
    adv: list[float]
    entropy: list[float]
    truncated: bool = False
    high_entropy: list[bool] = field(default_factory=list)
    selected: list[bool] = field(default_factory=list)
    stale: bool = False
    trainer: list[float] = field(default_factory=list)
    """`old` as the trainer computed it, where the ratio compares to another policy."""
    still: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.still = self.still or list(self.lp)
        self.trainer = self.trainer or list(self.old)
        self.high_entropy = self.high_entropy or [True] * len(self.lp)
        self.selected = self.selected or [False] * len(self.lp)


def mean(xs: Sequence[float]) -> float:
    return sum(xs) / len(xs)


def std(xs: Sequence[float], ddof: int) -> float:
    centre = mean(xs)
    return math.sqrt(sum((x - centre) ** 2 for x in xs) / (len(xs) - ddof)) if len(xs) > ddof else 0.0


def whiten(xs: Sequence[float], ddof: int, eps: float) -> list[float]:
    if max(xs) == min(xs):
        return [0.0] * len(xs)
    centre, spread = mean(xs), std(xs, ddof)
    return [(x - centre) / (spread + eps) for x in xs]


def clamp(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def kl(form: str, lp: float, ref: float, old: float, cap: float | None = None, still: float | None = None) -> float:
    """With `still`, a form whose gradient is not that of its value moves from its value there as its gradient says."""
    if form.endswith("_plus"):
        still = lp if still is None else still
        return _kl(form.removesuffix("_plus"), still, ref, old) + _kl("k2", lp, ref, old) - _kl("k2", still, ref, old)
    value = _kl(form, lp, ref, old)
    return value if cap is None else min(value, cap)


def _kl(form: str, lp: float, ref: float, old: float) -> float:
    d = ref - lp
    if form == "k1":
        return lp - ref
    if form == "k2":
        return 0.5 * d * d
    k3 = math.exp(d) - d - 1
    return k3 if form == "k3" else math.exp(lp - old) * k3


def ratios(level: str, row: Row) -> list[float]:
    """The importance ratio at every token."""
    diffs = [a - b for a, b in zip(row.lp, row.old, strict=True)]
    still = [a - b for a, b in zip(row.still, row.old, strict=True)]
    if level == "token":
        return [math.exp(d) for d in diffs]
    if level == "sequence":
        return [math.exp(mean(diffs))] * len(diffs)
    if level == "sequence_product":
        return [math.exp(sum(diffs))] * len(diffs)
    if level == "sequence_token":
        held = math.exp(mean(still))
        return [held * math.exp(a) / math.exp(b) for a, b in zip(row.lp, row.still, strict=True)]
    return [1.0] * len(diffs)


def still_ratios(level: str, row: Row) -> list[float]:
    return ratios(level, Row(row.still, row.old, row.ref, row.gen, row.adv, row.entropy))


def _clip(r: float, a: float, low: float, high: float) -> float:
    return min(r * a, clamp(r, 1 - low, 1 + high) * a)


def surrogate(name: str, options: dict[str, Any], level: str, row: Row) -> list[float]:
    """The objective at every token; the same one at each where the response has only one."""
    o, rs, out = options, ratios(level, row), []
    if name == "geometric_mean":
        total = 0.0
        for lp, old, a in zip(row.lp, row.old, row.adv, strict=True):
            s = 1.0 if a >= 0 else -1.0
            x = s * (lp - old)
            total += s * min(x, clamp(x, -o["clip"], o["clip"]))
        return [math.exp(total / len(row.lp)) * mean(row.adv)] * len(row.lp)
    if name == "squared":
        change = sum(row.lp) - sum(row.old)
        return [-((mean(row.adv) - o["tau"] * change) ** 2)] * len(row.lp)
    held = still_ratios(level, row)
    for t, (r, a) in enumerate(zip(rs, row.adv, strict=True)):
        if name == "clip":
            x = _clip(r, a, o["clip_low"], o["clip_high"])
        elif name == "dual_clip":
            x = _clip(r, a, o["clip_low"], o["clip_high"])
            x = max(x, o["dual"] * a) if a < 0 else x
        elif name == "two_sided":
            x = min(min(r, o["delta"]) * a, clamp(r, 1 - o["clip_low"], 1 + o["clip_high"]) * a)
        elif name == "cispo":
            low = 0.0 if o["clip_low"] is None else 1 - o["clip_low"]
            x = clamp(held[t], low, 1 + o["clip_high"]) * a * row.lp[t]
        elif name == "soft_gate":
            tau = o["tau_positive"] if a > 0 else o["tau_negative"]
            x = 4 / tau / (1 + math.exp(-tau * (r - 1))) * a
        elif name == "gamma_weight":
            k, rate = ("k_positive", "lambda_positive") if a >= 0 else ("k_negative", "lambda_negative")
            x = math.exp(o[rate] + o[k] * math.log(held[t]) - o[rate] * held[t]) * a * row.lp[t]
        elif name == "clip_cov":
            x = 0.0 if row.selected[t] else _clip(r, a, o["clip_low"], o["clip_high"])
        elif name == "kl_cov":
            x = r * a - (o["coef"] * abs(row.lp[t] - row.old[t]) if row.selected[t] else 0.0)
        elif name == "dppo":
            held_back = beyond(o, row.still[t], row.old[t], a)
            w = 0.0 if held_back else held[t] if o["ratio_cap"] is None else min(held[t], o["ratio_cap"])
            x = w * a * row.lp[t] - o["drift_coef"] * (row.lp[t] - row.old[t]) ** 2
        else:
            assert name == "reinforce"
            x = a * row.lp[t]
        out.append(x)
    return out


def binary_kl(q: float, p: float) -> float:
    """KL between two coins, from that of q to that of p."""
    rest, old_rest = max(1 - p, 1e-8), max(1 - q, 1e-8)
    return q * math.log(q / p) + old_rest * math.log(old_rest / rest)


def beyond(o: dict[str, Any], lp: float, old: float, a: float) -> bool:
    """The token has moved too far, where its advantage pushes it."""
    p, q = math.exp(lp), math.exp(old)
    distance = binary_kl(q, p) if o["divergence"] == "kl" else abs(p - q)
    if o["symmetric"]:
        return distance > (o["threshold_high"] if p > q else o["threshold_low"])
    if a > 0:
        return p > q and distance > o["threshold_high"]
    return a < 0 and p < q and distance > o["threshold_low"]


def aggregate(name: str, rows: Sequence[Sequence[float]], norm_length: int | None) -> float:
    rows = [row for row in rows if row]
    if not rows:
        return 0.0
    if name == "token_mean":
        return sum(map(sum, rows)) / sum(map(len, rows))
    if name == "sequence_mean_token_sum":
        return mean([sum(row) for row in rows])
    if name == "sequence_mean_token_sum_norm":
        return mean([sum(row) / norm_length for row in rows])
    return mean([mean(row) for row in rows])


def mismatch_weights(level: str, action: str, floor: float, cap: float, row: Row) -> list[float]:
    # old log-probs come from the trainer and hold no gradient
    diffs = [a - b for a, b in zip(row.old, row.gen, strict=True)]
    if level == "token":
        raw = [math.exp(d) for d in diffs]
    else:
        raw = [math.exp(sum(diffs) if level == "sequence" else mean(diffs))] * len(diffs)
    if action == "truncate":
        return [clamp(w, floor, cap) for w in raw]
    return [w if floor <= w <= cap else 0.0 for w in raw]


def off_policy_keep(delta: float, row: Row) -> list[float]:
    drift = mean([g - lp for g, lp in zip(row.gen, row.still, strict=True)])
    return [1.0 if a >= 0 or drift <= delta else 0.0 for a in row.adv]


def rejected(criteria: Sequence[tuple[str, float, float]], row: Row) -> list[bool]:
    out = [False] * len(row.lp)
    for name, low, high in criteria:
        reduction, _, estimator = name.partition("_")
        xs = [clamp(old - gen, -20, 20) for old, gen in zip(row.trainer, row.gen, strict=True)]
        if estimator == "binary_kl":
            values = [binary_kl(math.exp(gen), math.exp(old)) for old, gen in zip(row.trainer, row.gen, strict=True)]
        else:
            values = [{"k1": -x, "k2": x * x / 2, "k3": math.exp(x) - x - 1}[estimator] for x in xs]
        if reduction != "token":
            values = [{"sum": sum, "mean": mean, "max": max}[reduction](values)] * len(values)
        out = [o or not low <= v <= high for o, v in zip(out, values, strict=True)]
    return out


def token_weights(p: Any, row: Row) -> list[float]:
    """The weight of each token, 0 if it is dropped."""
    m, weights = p.params, [1.0] * len(row.lp)
    if m.mismatch_level != "none":
        weights = mismatch_weights(m.mismatch_level, m.mismatch_action, m.mismatch_floor, m.mismatch_cap, row)
    keeps = [[not r for r in rejected(m.criteria, row)]]
    if p.params.off_policy_delta is not None:
        keeps.append([w > 0 for w in off_policy_keep(p.params.off_policy_delta, row)])
    if p.params.high_entropy_share is not None:
        keeps.append(row.high_entropy)
    return [w if all(keep) else 0.0 for w, *keep in zip(weights, *keeps, strict=True)]


def cut_to(row: Row, kept: Sequence[int]) -> Row:
    """The row as if it had only those tokens."""
    names = ("lp", "old", "ref", "gen", "adv", "entropy", "selected", "still")
    return Row(**{name: [getattr(row, name)[t] for t in kept] for name in names})


def weighted(p: Any, row: Row) -> list[float]:
    """The weighted objective at every token: the kept tokens are a response of their own, the others are 0."""
    weights = token_weights(p, row)
    kept = [t for t, w in enumerate(weights) if w]
    if not kept:
        return [0.0] * len(weights)
    values = surrogate(p.surrogate.name, dict(p.surrogate.options), p.ratio, cut_to(row, kept))
    if p.surrogate.name in ("geometric_mean", "squared"):  # one value per response, and so one weight
        return [values[0] * math.exp(mean([math.log(weights[t]) for t in kept]))] * len(weights)
    out = [0.0] * len(weights)
    for t, value in zip(kept, values, strict=True):
        out[t] = value * weights[t]
    return out


def loss(parts: Any, rows: Sequence[Row]) -> float:
    """The loss of a whole batch for `Parts` (only its plain fields are read)."""
    p = parts
    elements, kls, entropies = [], [], []
    for row in rows:
        if not row.lp or (p.params.overlong_filter and row.truncated):
            continue
        if row.stale and p.params.mismatch_stale != "decoupled":
            row = replace(row, old=row.gen)
        elements.append(weighted(p, row))
        spots = zip(row.lp, row.ref, row.old, row.still, strict=True)
        if p.params.kl_form == "k3_ratio":
            weighted_k3 = [
                r * kl("k3", lp, ref, lp) for r, lp, ref in zip(ratios(p.ratio, row), row.lp, row.ref, strict=True)
            ]
            kls.append([k3 if p.params.kl_cap is None else min(k3, p.params.kl_cap) for k3 in weighted_k3])
        else:
            kls.append([kl(p.params.kl_form, lp, ref, old, p.params.kl_cap, still) for lp, ref, old, still in spots])
        entropies.append(row.entropy)
    total = -aggregate(p.aggregate, elements, p.norm_length)
    if p.params.kl_place == "loss":
        total += p.params.kl_coef * aggregate(p.aggregate, kls, p.norm_length)
    if p.params.entropy_coef:
        total -= p.params.entropy_coef * aggregate("token_mean", entropies, None)
    return total
