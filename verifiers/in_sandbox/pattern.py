"""Runs in the sandbox: a search for a pattern, which may take too long and is then killed."""

from __future__ import annotations

import re


def matches(pattern: str, text: str, whole: bool) -> bool | str:
    """Return True if `pattern` matches all of `text` (or a part of it), "bad_pattern" if it is malformed."""
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return "bad_pattern"
    return (compiled.fullmatch(text) if whole else compiled.search(text)) is not None
