"""Slow doubles of pipeline/rl/distillation.py: floats, lists and loops, straight from the formulas. No tensors."""

import math
from collections.abc import Callable, Sequence

Floats = Sequence[float]


def softmax(logits: Floats, temperature: float = 1.0) -> list[float]:
    powers = [math.exp((x - max(logits)) / temperature) for x in logits]
    return [x / sum(powers) for x in powers]


def kl(a: Floats, b: Floats) -> float:
    return sum(x * math.log(x / y) for x, y in zip(a, b, strict=True) if x > 0)


def divergence(name: str, p: Floats, q: Floats) -> float:
    """D of the policy p from the teacher q."""
    return kl(p, q) if name == "reverse_kl" else kl(q, p)


def coarse(p: Floats, ids: Sequence[int]) -> list[float]:
    """The probabilities of those tokens, and of all others together if there are any."""
    rest = [x for i, x in enumerate(p) if i not in ids]
    return [*(p[i] for i in ids), *([sum(rest)] if rest else [])]


def most_likely(q: Floats, k: int) -> list[int]:
    return sorted(range(len(q)), key=lambda i: -q[i])[:k]


def token_loss(logits: Floats, teacher: Floats, name: str, *, top_k: int | None, temperature: float) -> float:
    """D at one token, over the vocabulary or over the teacher's `top_k` tokens and the rest."""
    p, q = softmax(logits, temperature), softmax(teacher, temperature)
    if top_k is not None:
        ids = most_likely(q, top_k)
        p, q = coarse(p, ids), coarse(q, ids)
    return divergence(name, p, q)


def slopes(value: Callable[[list[float]], float], at: Floats, step: float = 1e-5) -> list[float]:
    """The gradient by central differences."""
    out = []
    for i in range(len(at)):
        high, low = list(at), list(at)
        high[i] += step
        low[i] -= step
        out.append((value(high) - value(low)) / (2 * step))
    return out
