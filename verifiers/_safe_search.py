"""Search a model's text for a pattern: here if that is surely quick, else in the sandbox, which has a time limit.

A text can be written to make a pattern run for years, as forty letters and a mark do for `^(a+)+$`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from verizero.pipeline.errors import DataError
from verizero.verifiers._sandbox_jobs import Job, SandboxParams, run_or_fail, runner

INSIDE = (Path(__file__).parent / "in_sandbox" / "pattern.py").read_text()
MAX_HERE = 2_000
"""Maximum of characters in a text that is searched in this process."""
LIMITS = SandboxParams(wall_s=5, cpu_s=1)


class TooSlow(Exception):
    """The search did not end in time."""


class NotSearched(Exception):
    """The sandbox failed; the message says how."""


@lru_cache(maxsize=4096)
def is_found(pattern: str, text: str) -> bool:
    """True if `pattern` (of Python's re) matches somewhere in `text`.

    Raises: DataError for a malformed pattern; TooSlow; NotSearched.
    """
    if is_quick(pattern) and len(text) <= MAX_HERE:
        return re.search(pattern, text) is not None
    job = Job(INSIDE, ({"fn": "matches", "args": [pattern, text, "", False], "expected": True},), "function")
    (outcome,) = run_or_fail([job], runner(LIMITS))
    if outcome.status == "sandbox_error":
        raise NotSearched(outcome.detail)
    if outcome.is_over_budget:
        raise TooSlow(f"the pattern {pattern:.80} took more than {LIMITS.cpu_s:g} CPU seconds")
    return outcome.status == "passed"


@lru_cache(maxsize=4096)
def is_quick(pattern: str) -> bool:
    """True if a search for `pattern` takes at most the square of the text's length: it has one repetition or choice.

    Raises: DataError for a malformed pattern.
    """
    try:
        re.compile(pattern)
        tree = parser.parse(pattern)
    except (re.error, RecursionError, OverflowError) as exc:
        raise DataError(f"reference.schema: not a pattern of Python's re: {pattern!r:.80}: {exc}") from exc
    return _repetitions(tree) <= 1


def _repetitions(tree: Any) -> int:
    """Count the parts that can match in several ways; a nested part counts twice."""
    total = 0
    for operation, argument in tree:
        name = str(operation)
        if name.endswith("REPEAT") or name == "POSSESSIVE_REPEAT":
            low, high, body = argument
            inside = _repetitions(body)
            total += (inside > 0) * 2 + (low != high)
        elif name in ("GROUPREF", "GROUPREF_EXISTS"):
            total += 2
        else:
            total += sum(_repetitions(part) for part in _inner_patterns(argument))
            total += name == "BRANCH"  # (a|ab)* has as many ways as (a*)*
    return total


def _inner_patterns(argument: Any) -> list[Any]:
    """Return the patterns inside the argument of an operation."""
    if isinstance(argument, parser.SubPattern):
        return [argument]
    if isinstance(argument, tuple | list):
        return [inner for item in argument for inner in _inner_patterns(item)]
    return []
