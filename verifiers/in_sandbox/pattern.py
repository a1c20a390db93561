"""Runs in the sandbox: whether a pattern is found in a text. Patterns can run for years; here they end."""

from __future__ import annotations

import re


def matches(pattern: str, text: str, flags: str, whole: bool) -> bool | str:
    """Whether `pattern` matches all of `text` (or a part of it); "bad_pattern" if it is no pattern."""
    try:
        compiled = re.compile(pattern, sum(getattr(re, f.upper()) for f in flags))
    except (re.error, RecursionError, OverflowError):
        return "bad_pattern"
    return (compiled.fullmatch(text) if whole else compiled.search(text)) is not None
