"""Verdicts of answers that come again: a policy that has learnt a prompt writes the same answer to it every time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.types import Attempt, Verdict

MOST = 16384
"""Verdicts that are kept; the ones that were not asked for longest go first."""
LONGEST = 4096
"""Characters of a response that is remembered: longer ones hardly ever come again, and fill memory."""
_KEPT = ("graded", "no_answer")
"""A timeout or a failure may be the machine's: it is tried again."""


@dataclass(frozen=True, slots=True)
class _Known:
    reference: Any
    verdict: Verdict


class Remembered:
    """What graders said, by grader and attempt. Safe from any thread."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[Any, ...], _Known] = OrderedDict()
        self._lock = threading.Lock()

    def fill(
        self, key: str, attempts: Sequence[Attempt], ask: Callable[[str, list[Attempt]], Sequence[Verdict]]
    ) -> list[Verdict]:
        """One verdict per attempt, in order: what is known of it, with no seconds spent, else what `ask` says."""
        found = [self._recall(key, attempt) for attempt in attempts]
        missing = [i for i, verdict in enumerate(found) if verdict is None]
        for i, verdict in zip(missing, ask(key, [attempts[i] for i in missing]) if missing else (), strict=True):
            found[i] = verdict
            self._keep(key, attempts[i], verdict)
        return [verdict for verdict in found if verdict is not None]

    def _recall(self, key: str, attempt: Attempt) -> Verdict | None:
        place = _place(key, attempt)
        with self._lock:
            known = self._known.get(place)
            if known is None or not _same(known.reference, attempt.reference):
                return None
            self._known.move_to_end(place)
        return replace(known.verdict, seconds=0.0)

    def _keep(self, key: str, attempt: Attempt, verdict: Verdict) -> None:
        if verdict.status not in _KEPT or len(attempt.response) > LONGEST:
            return
        with self._lock:
            self._known[_place(key, attempt)] = _Known(attempt.reference, verdict)
            if len(self._known) > MOST:
                self._known.popitem(last=False)


def _place(key: str, attempt: Attempt) -> tuple[Any, ...]:
    return key, attempt.prompt, attempt.response, attempt.truncated


def _same(known: Any, reference: Any) -> bool:
    """The same object, or one that cannot be told from it: 1, 1.0 and True are equal, and not the same reference."""
    return known is reference or repr(known) == repr(reference)
