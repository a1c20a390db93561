"""Slow doubles of pipeline/rl/distillation.py: floats, lists and loops, straight from the formulas. No tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product

Floats = Sequence[float]


def softmax(logits: Floats, temperature: float = 1.0) -> list[float]:
    powers = [math.exp((x - max(logits)) / temperature) for x in logits]
    return [x / sum(powers) for x in powers]


def kl(a: Floats, b: Floats) -> float:
    return sum(x * math.log(x / y) for x, y in zip(a, b, strict=True) if x > 0)


def divergence(name: str, p: Floats, q: Floats, beta: float = 0.5) -> float:
    """D of the policy p from the teacher q."""
    if name == "reverse_kl":
        return kl(p, q)
    if name == "forward_kl":
        return kl(q, p)
    if name == "mixed":
        return beta * kl(q, p) + (1 - beta) * kl(p, q)
    m = [beta * b + (1 - beta) * a for a, b in zip(p, q, strict=True)]
    return beta * kl(q, m) + (1 - beta) * kl(p, m)


def coarse(p: Floats, ids: Sequence[int]) -> list[float]:
    """The probabilities of those tokens, and of all others together if there are any."""
    rest = [x for i, x in enumerate(p) if i not in ids]
    return [*(p[i] for i in ids), *([sum(rest)] if rest else [])]


def most_likely(q: Floats, k: int) -> list[int]:
    return sorted(range(len(q)), key=lambda i: -q[i])[:k]


def zero_outside(p: Floats, q: Floats, name: str, ids: Sequence[int], beta: float) -> float:
    """D as NeMo-RL writes it: the teacher's tokens `ids` by themselves, then a correction for all others."""
    own = {i: q[i] / sum(q[j] for j in ids) for i in ids}
    forward = sum(own[i] * math.log(own[i] / p[i]) for i in ids)
    rest = [x for i, x in enumerate(p) if i not in ids]
    correction = sum(x * math.log(x) for x in rest) + 100 * sum(rest)
    reverse = sum(p[i] * math.log(p[i] / own[i]) for i in ids) + correction
    return {"forward_kl": forward, "reverse_kl": reverse, "mixed": beta * forward + (1 - beta) * reverse}[name]


def token_loss(
    logits: Floats,
    teacher: Floats,
    name: str,
    *,
    top_k: int | None,
    beta: float,
    temperature: float,
    zero: bool = False,
) -> float:
    """D at one token, over the vocabulary or over the teacher's `top_k` tokens and the rest."""
    p, q = softmax(logits, temperature), softmax(teacher, temperature)
    if top_k is not None and zero:
        return zero_outside(p, q, name, most_likely(q, top_k), beta)
    if top_k is not None:
        ids = most_likely(q, top_k)
        p, q = coarse(p, ids), coarse(q, ids)
    return divergence(name, p, q, beta)


def importance(ratios: Floats, level: str, sampled: bool, cap: float) -> list[float]:
    """The weight of each token of a stale response, from pi / pi_gen of its tokens."""
    out = []
    for t in range(len(ratios)):
        until = t + 1 if sampled else t
        weight = ratios[t] if level == "token" else math.prod(ratios[:until])
        out.append(min(weight, cap))
    return out


def drift(divergences: Floats, gamma: float) -> list[float]:
    """The weight of each token of a response by the divergence before it (IW-OPD)."""
    total = sum(abs(d) for d in divergences)
    return [1 + gamma * (1 - sum(abs(d) for d in divergences[:t]) / total) for t in range(len(divergences))]


def slopes(value: Callable[[list[float]], float], at: Floats, step: float = 1e-5) -> list[float]:
    """The gradient by central differences."""
    out = []
    for i in range(len(at)):
        high, low = list(at), list(at)
        high[i] += step
        low[i] -= step
        out.append((value(high) - value(low)) / (2 * step))
    return out


def responses(words: int, length: int) -> Iterator[tuple[int, ...]]:
    """All responses of that length."""
    return product(range(words), repeat=length)


def whole_divergence(
    policy: dict[tuple[int, ...], Floats], teacher: dict[tuple[int, ...], Floats], length: int
) -> float:
    """The reverse KL between whole responses: both models as logits by what came before."""
    words, total = len(policy[()]), 0.0
    for y in responses(words, length):
        log_p = sum(math.log(softmax(policy[y[:t]])[y[t]]) for t in range(length))
        log_q = sum(math.log(softmax(teacher[y[:t]])[y[t]]) for t in range(length))
        total += math.exp(log_p) * (log_p - log_q)
    return total
