"""Grading of responses while others are still being written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace

from pipeline.types import Attempt, FinishReason, Prompt, Verdict, Written

Grade = Callable[[Sequence[str], Sequence[Attempt]], list[Verdict]]
"""(keys of verifiers, attempts) -> one verdict per attempt, in order."""


def attempt_of(prompt: Prompt, text: str, finish_reason: FinishReason) -> Attempt:
    """What a verifier sees of a response to `prompt`."""
    return Attempt(text, prompt.reference, prompt.question, finish_reason == "length")


class Ahead:
    """Grades what `add` is given in the background, and tells `known` what came of it.

    What ends while graders are busy is graded together, next: so slow graders get larger batches, and equal responses
    that end together are answered once.
    """

    def __init__(self, columns: Sequence[str], grade: Grade, thread: Executor) -> None:
        """`columns`: keys of further verifiers that grade every response. `thread` does one thing at a time."""
        self._columns, self._grade, self._thread = columns, grade, thread
        self._lock = threading.Lock()
        self._waiting: list[Written] = []
        self._rounds: list[Future[None]] = []
        self._asked: dict[int, tuple[str, Attempt]] = {}
        self._verdicts: list[dict[int, Verdict]] = [{} for _ in range(1 + len(columns))]
        self.seconds = 0.0
        """In which graders were at work."""

    def add(self, ended: Sequence[Written], offset: int = 0) -> None:
        """Grade these soon. Their places among all that will be scored begin at `offset`."""
        with self._lock:
            self._waiting += [replace(w, place=w.place + offset) for w in ended] if offset else ended
        self._rounds.append(self._thread.submit(self._round))

    def known(self, keys: Sequence[str], asked: Sequence[Attempt]) -> list[dict[int, Verdict]]:
        """The verdicts by place, of each response's own verifier and of each further one; waits for all added.

        Places at which `keys` and `asked` hold something else than was graded have none.
        """
        for future in self._rounds:
            future.result()
        same = {i for i, one in self._asked.items() if i < len(asked) and one == (keys[i], asked[i])}
        return [{i: verdict for i, verdict in found.items() if i in same} for found in self._verdicts]

    def _round(self) -> None:
        with self._lock:
            some, self._waiting = self._waiting, []
        if not some:
            return
        start = time.perf_counter()
        asked = [attempt_of(w.prompt, w.text, w.finish_reason) for w in some]
        keys = [w.prompt.verifier for w in some]
        places = [w.place for w in some]
        for found, column in zip(self._verdicts, [keys, *([name] * len(asked) for name in self._columns)], strict=True):
            found.update(zip(places, self._grade(column, asked), strict=True))
        self._asked.update(zip(places, zip(keys, asked, strict=True), strict=True))
        self.seconds += time.perf_counter() - start
