"""A cache of verdicts: a policy that has learnt a prompt often writes the same answer to it again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from verizero.pipeline.types import Attempt, Verdict

MAX_VERDICTS = 16384
"""The most verdicts in the cache; the least recently used is dropped first."""
MAX_CHARACTERS = 4096
"""The longest response whose verdict is cached: longer ones are hardly ever written again, and fill memory."""
_FINAL = ("graded", "no_answer")
"""Statuses that are cached. A timeout or a failure may be due to the machine, so it is tried again."""


class VerdictCache:
    """Verdicts by grader and attempt. Any number of threads may use it."""

    def __init__(self) -> None:
        self._verdicts: OrderedDict[tuple[Any, ...], tuple[Any, Verdict]] = OrderedDict()
        """(key, prompt, response, truncated) -> (reference, verdict): references may be unhashable."""
        self._lock = threading.Lock()

    def fill(
        self, key: str, attempts: Sequence[Attempt], ask: Callable[[str, list[Attempt]], Sequence[Verdict]]
    ) -> list[Verdict]:
        """Return one verdict per attempt, in order: the cached one, with 0 seconds, else that of `ask`."""
        verdicts = [self._recall(key, attempt) for attempt in attempts]
        missing = [i for i, verdict in enumerate(verdicts) if verdict is None]
        # Outside the lock: two threads may grade the same answer, which costs time and changes nothing.
        for i, verdict in zip(missing, ask(key, [attempts[i] for i in missing]) if missing else (), strict=True):
            verdicts[i] = verdict
            self._keep(key, attempts[i], verdict)
        return [verdict for verdict in verdicts if verdict is not None]

    def _recall(self, key: str, attempt: Attempt) -> Verdict | None:
        if attempt.messages:  # an equal last message of another episode may deserve another verdict
            return None
        entry = _entry_key(key, attempt)
        with self._lock:
            reference, verdict = self._verdicts.get(entry, (None, None))
            if verdict is None or not _is_same(reference, attempt.reference):
                return None
            self._verdicts.move_to_end(entry)
        return replace(verdict, seconds=0.0)

    def _keep(self, key: str, attempt: Attempt, verdict: Verdict) -> None:
        if attempt.messages or verdict.status not in _FINAL or len(attempt.response) > MAX_CHARACTERS:
            return
        with self._lock:
            self._verdicts[_entry_key(key, attempt)] = attempt.reference, verdict
            if len(self._verdicts) > MAX_VERDICTS:
                self._verdicts.popitem(last=False)


def _entry_key(key: str, attempt: Attempt) -> tuple[Any, ...]:
    return key, attempt.prompt, attempt.response, attempt.truncated


def _is_same(known: Any, reference: Any) -> bool:
    """True for the same object, or one with the same repr: 1, 1.0 and True are equal, but not the same reference."""
    return known is reference or repr(known) == repr(reference)
