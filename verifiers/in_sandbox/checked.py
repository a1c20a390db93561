"""Runs in the sandbox, behind a checker's source: asks it about one output."""

from __future__ import annotations

from typing import Any


def verizero_checked(input: Any, output: Any, expected: Any) -> bool:
    """Return what `check` says of the output.

    If a checker fails on it, and accepts the expected output, then it could not read the output, which is wrong.
    """
    check = globals()["check"]
    try:
        answer = check(input, output, expected)
    except Exception:
        if expected is None or check(input, expected, expected) not in (True, 1):
            raise
        return False
    if answer not in (True, False):
        raise TypeError(f"check returned {answer!r:.80}, and neither True nor False")
    return bool(answer)
