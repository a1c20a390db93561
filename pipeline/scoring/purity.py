"""Two properties of a grader: if it may run in another process, and if its verdicts may be cached."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from verizero.verifiers.base import BoundVerifier


def may_leave(grader: object) -> bool:
    """True if the grader may run in another process: neither it nor its parts have a model, connection or process."""
    return isinstance(grader, BoundVerifier) and all(part.params.may_leave for part in _parts(grader))


def is_pure(grader: object) -> bool:
    """True if equal answers get equal verdicts: `may_leave`, and all its parts are verifiers of this project."""
    return may_leave(grader) and all(part.verifier.is_ours for part in _parts(grader))


def _parts(grader: object) -> Iterator[BoundVerifier[Any]]:
    """Yield the verifier and all verifiers that it combines."""
    if isinstance(grader, BoundVerifier):
        yield grader
        for part in grader.params.combined_verifiers():
            yield from _parts(part)
