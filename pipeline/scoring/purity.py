"""What a grader holds, and so where it may grade and whether what it said holds for good."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import verifiers
from verifiers.base import BoundVerifier


def may_leave(bound: object) -> bool:
    """Whether this grader may work in another process: it holds no model, connection or process of its own."""
    return isinstance(bound, BoundVerifier) and all(part.params.may_leave for part in _parts(bound))


def is_pure(bound: object) -> bool:
    """Whether this grader says the same of the same answer: it may leave, and is one of ours with all its parts."""
    return may_leave(bound) and all(_is_ours(part) for part in _parts(bound))


def _parts(bound: object) -> Iterator[BoundVerifier[Any]]:
    """The verifier, and those that it combines."""
    if isinstance(bound, BoundVerifier):
        yield bound
        for part in getattr(bound.params, "parts", ()):
            yield from _parts(getattr(part, "bound", None))


def _is_ours(bound: BoundVerifier[Any]) -> bool:
    return bound.verifier.module.partition(".")[0] == verifiers.__name__
