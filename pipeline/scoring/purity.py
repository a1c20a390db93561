"""Two properties of a grader: if another process may grade for it, and if its verdicts can be kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from verizero.verifiers.base import BoundVerifier


def may_leave(bound: object) -> bool:
    """True if another process may grade: the verifier and its parts hold no model, connection or process."""
    return isinstance(bound, BoundVerifier) and all(part.params.may_leave for part in _parts(bound))


def is_pure(bound: object) -> bool:
    """True if equal answers get equal verdicts: it may leave, and all its parts are verifiers of this project."""
    return may_leave(bound) and all(part.verifier.is_ours for part in _parts(bound))


def _parts(bound: object) -> Iterator[BoundVerifier[Any]]:
    """Yield the verifier, and those that it combines."""
    if isinstance(bound, BoundVerifier):
        yield bound
        for part in bound.params.combined_verifiers():
            yield from _parts(part)
