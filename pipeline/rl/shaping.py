"""What is added to a reward for its response's length, before advantages. Loads no tensors."""

from __future__ import annotations

from pipeline.rl.parts import Shaping


def soft_overlong(length: int, longest: int, buffer: float) -> float:
    """0 up to `longest - cache` tokens, falling linearly to -1 at `longest`, -1 beyond; cache = buffer * longest.

    Source: arXiv:2503.14476 eq. 13.
    """
    cache = buffer * longest
    start = longest - cache
    if length <= start:
        return 0.0
    return max(-1.0, (start - length) / cache)


def length_penalty(shaping: Shaping, length: int, longest: int) -> float:
    """What a response of `length` tokens gets added to its reward, <= 0; `longest` is the recipe's response limit.

    The soft overlong penalty times its factor, and the token budget's penalty for a response past it
    (arXiv:2507.20534 section 3.2.3).
    """
    total = 0.0
    if shaping.overlong_buffer is not None:
        total += shaping.overlong_factor * soft_overlong(length, longest, shaping.overlong_buffer)
    if shaping.token_budget is not None and length > shaping.token_budget:
        total -= shaping.token_budget_penalty
    return total
