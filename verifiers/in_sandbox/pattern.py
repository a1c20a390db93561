"""Runs in the sandbox: a search for a pattern, which may take too long and is then killed."""

from __future__ import annotations

import re


def is_in(pattern: str, text: str) -> bool:
    """True if `pattern` matches somewhere in `text`."""
    return re.search(pattern, text) is not None
