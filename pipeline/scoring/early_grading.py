"""Grades responses while others are still being written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace

from verizero.pipeline.types import Attempt, EndedResponse, FinishReason, Message, Prompt, Rollout, Verdict

Grade = Callable[[Sequence[str], Sequence[Attempt]], list[Verdict]]
"""(keys of verifiers, attempts) -> one verdict per attempt, in order."""


def attempt_of(
    prompt: Prompt,
    text: str,
    finish_reason: FinishReason,
    messages: tuple[Message, ...] = (),
    response_ids: Sequence[int] = (),
) -> Attempt:
    """Return a response to `prompt` as verifiers see it; with `messages`, it is the last one of an episode."""
    ids = () if prompt.row is None else tuple(response_ids)  # only what takes columns can ask for tokens
    return Attempt(text, prompt.reference, prompt.question, finish_reason == "length", messages, prompt.row, ids)


def attempt_in(prompt: Prompt, rollout: Rollout) -> Attempt:
    """Return a rollout as verifiers see it."""
    messages = () if rollout.episode is None else rollout.episode.messages
    return attempt_of(prompt, rollout.answer, "length" if rollout.was_cut else "stop", messages, rollout.response_ids)


class EarlyGrading:
    """Grades in a thread the responses that `add` receives; `verdicts` waits for them.

    Responses that end while graders are busy are graded together afterwards. So slow graders get larger batches, and
    equal responses that end together are graded once.
    """

    def __init__(self, components: Sequence[str], grade: Grade, thread: Executor) -> None:
        """`components`: keys of further verifiers that grade every response. `thread` must run one call at a time."""
        self._components, self._grade, self._thread = components, grade, thread
        self._lock = threading.Lock()
        self._waiting: list[EndedResponse] = []
        self._rounds: list[Future[None]] = []
        self._graded: dict[int, tuple[str, Attempt]] = {}
        """By index: the verifier's key and the attempt that were graded."""
        self._verdicts: list[dict[int, Verdict]] = [{} for _ in range(1 + len(components))]
        self.seconds = 0.0
        """Seconds in which graders worked."""

    def add(self, ended: Sequence[EndedResponse], offset: int = 0) -> None:
        """Grade these responses soon. `offset` is added to their indices: each `generate_rollouts` counts from 0."""
        with self._lock:
            self._waiting += [replace(e, index=e.index + offset) for e in ended]
        # One round per call: rounds that find nothing to do, as an earlier one took all that waited, end at once.
        self._rounds.append(self._thread.submit(self._grade_waiting))

    def verdicts(self, keys: Sequence[str], attempts: Sequence[Attempt]) -> list[dict[int, Verdict]]:
        """Return verdicts by index into `attempts`: first those of `keys`, then those of each component.

        Waits for all responses added. An index has no verdict if another attempt was graded there.
        """
        for future in self._rounds:
            future.result()
        # No lock is needed: the thread that writes these has ended its rounds.
        same = {i for i, pair in self._graded.items() if i < len(attempts) and pair == (keys[i], attempts[i])}
        return [{i: verdict for i, verdict in column.items() if i in same} for column in self._verdicts]

    def _grade_waiting(self) -> None:
        with self._lock:
            ended, self._waiting = self._waiting, []
        if not ended:
            return
        start = time.perf_counter()
        attempts = [attempt_of(e.prompt, e.text, e.finish_reason, e.messages, e.response_ids) for e in ended]
        keys = [e.prompt.verifier for e in ended]
        indices = [e.index for e in ended]
        columns = [keys, *([name] * len(attempts) for name in self._components)]
        for verdicts, column in zip(self._verdicts, columns, strict=True):
            verdicts.update(zip(indices, self._grade(column, attempts), strict=True))
        self._graded.update(zip(indices, zip(keys, attempts, strict=True), strict=True))
        self.seconds += time.perf_counter() - start
