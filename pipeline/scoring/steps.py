"""Steps of a response in tokens: which token each step of a verdict ends with."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from verizero.verifiers._steps import step_ends

CONTEXT = 8
"""Tokens decoded before those that are measured, since some tokenizers drop the blank of a text's first token."""
PIECE = 16
"""Tokens of the first piece in which a step's end is looked for; each further one is twice as long."""


def step_tokens(
    ids: Sequence[int], text: str, steps: Iterable[tuple[str, float]], decode: Callable[[Sequence[int]], str]
) -> tuple[tuple[int, float], ...]:
    """Return (number of tokens up to its end, reward) for each step of the response with these tokens and this text.

    A step ends with the token that has its last character; the last step ends with the response. Two steps may end
    with the same token. Raises: ValueError for a step that is not in the text.
    """
    ends = step_ends(text, steps)
    out: list[tuple[int, float]] = []
    num_tokens = num_chars = 0  # the tokens looked through so far, and their characters
    for end, reward in ends[:-1]:
        begin = max(0, num_tokens - CONTEXT)
        before = num_chars - _num_chars(ids[begin:num_tokens], decode)

        def chars(stop: int, begin: int = begin, before: int = before) -> int:
            return before + _num_chars(ids[begin:stop], decode)

        stop, size = num_tokens, PIECE
        while stop < len(ids) and chars(stop) < end:
            stop, size = min(len(ids), stop + size), 2 * size
        num_tokens = min(len(ids), bisect_left(range(stop + 1), end, lo=num_tokens, key=chars))
        num_chars = chars(num_tokens)
        out.append((num_tokens, reward))
    return (*out, (len(ids), ends[-1][1])) if ends else ()


def _num_chars(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> int:
    """Return the number of whole characters of the tokens: a last character may miss bytes."""
    return len(decode(ids).rstrip("\N{REPLACEMENT CHARACTER}"))
