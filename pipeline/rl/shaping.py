"""Penalties on the length of responses, added to rewards before advantages. Loads no tensors."""

from __future__ import annotations

from verizero.pipeline.rl.parts import Shaping


def soft_overlong(length: int, longest: int, buffer: float) -> float:
    """Return the soft overlong penalty: 0 up to `longest - cache` tokens, then linear to -1 at `longest`, then -1.

    cache = buffer * longest.

    Source: arXiv:2503.14476 eq. 13.
    """
    cache = buffer * longest
    start = longest - cache
    if length <= start:
        return 0.0
    return max(-1.0, (start - length) / cache)


def length_penalty(shaping: Shaping, length: int, longest: int) -> float:
    """Return the penalty <= 0 on a response of `length` tokens; `longest` is the recipe's response limit.

    It is the soft overlong penalty times its factor, plus the token budget's penalty for a response beyond the budget
    (arXiv:2507.20534 section 3.2.3).
    """
    total = 0.0
    if shaping.overlong_buffer is not None:
        total += shaping.overlong_factor * soft_overlong(length, longest, shaping.overlong_buffer)
    if shaping.token_budget is not None and length > shaping.token_budget:
        total -= shaping.token_budget_penalty
    return total
