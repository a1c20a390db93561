"""Steps of a response: how a text is split into them, and where in the text each of them ends."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from verizero.pipeline.types import Verdict


def split_steps(text: str, end: str) -> list[str]:
    """Return the text in pieces, each up to the end of a match of the regular expression `end`.

    A blank piece is part of the one before it. The pieces together are the text.
    """
    cuts = [0, *(match.end() for match in re.finditer(end, text)), len(text)]
    pieces: list[str] = []
    for start, stop in pairwise(cuts):
        if pieces and not text[start:stop].strip():
            pieces[-1] += text[start:stop]
        elif start < stop:
            pieces.append(text[start:stop])
    return pieces


def check_expression(end: str | None) -> str | None:
    """Return `end`. Raises: ValueError if it is no regular expression."""
    if end is not None:
        try:
            re.compile(end)
        except re.error as exc:
            raise ValueError(
                f"{end!r} is no regular expression ({exc}); e.g. '\\n' ends a step with its line"
            ) from None
    return end


def step_ends(text: str, steps: Iterable[Any]) -> tuple[tuple[int, float], ...]:
    """Return (number of characters up to its end, reward) for each step, a pair of its text and its reward.

    Each step's text is looked for from the end of the step before, so that separators may be left out.
    Raises: ValueError naming the first step that is no such pair, is empty, is not there or has no finite reward.
    """
    ends: list[tuple[int, float]] = []
    for number, step in enumerate(steps, 1):
        try:
            piece, reward = step
            reward = float("no" if isinstance(reward, str | bytes) else reward)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"step {number} is {step!r:.60}; a step is a pair (its text, its reward)") from None
        if not isinstance(piece, str) or not piece:
            raise ValueError(f"step {number} has the text {piece!r:.60}; leave out steps without text")
        if not math.isfinite(reward):
            raise ValueError(f"step {number} has reward {reward}, which is not finite")
        start = ends[-1][0] if ends else 0
        at = text.find(piece, start)
        if at < 0:
            where = f"after step {number - 1}" if ends else "in the response"
            raise ValueError(
                f"step {number} ({piece!r:.60}) is not {where}; give the texts as they are in it, in order"
            )
        ends.append((at + len(piece), reward))
    return tuple(ends)


def checked_steps(text: str, steps: object) -> tuple[tuple[str, float], ...]:
    """Return the steps of a verdict on `text`, as pairs of text and number. Raises: ValueError, as `step_ends` does."""
    if isinstance(steps, str | bytes) or not isinstance(steps, Sequence):
        raise ValueError(f"steps is {steps!r:.60}; give a list of pairs (text, reward)")
    return tuple((step[0], reward) for step, (_, reward) in zip(steps, step_ends(text, steps), strict=True))


def steps_of_one(verdicts: Iterable[tuple[str, Verdict]]) -> tuple[tuple[str, float], ...]:
    """Return the steps of the one verdict that has steps; () if none has. `verdicts` are behind their verifiers' names.

    Raises: ValueError if several have: their steps are different pieces of the response.
    """
    having = [(name, v.steps) for name, v in verdicts if v.steps]
    if len(having) > 1:
        names = " and ".join(name for name, _ in having)
        raise ValueError(f"{names} give steps, and a response has those of one verifier; keep one of them")
    return having[0][1] if having else ()
