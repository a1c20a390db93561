"""Plays episodes without waiting: each samples its next turn as soon as its environment has answered.

A slow tool then delays its own episode only. Which turns are computed together depends on time, so log-probs may differ
in their last digits from run to run, and a resumed run may differ from one that was never killed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

from verizero.pipeline.rollout.engine import Completion, Engine, Sampling
from verizero.pipeline.rollout.next_turn import SeededEpisode, sample, sample_one

GRACE_S = 0.01
"""Seconds to wait for more episodes after the first that is ready: a call for one row costs nearly that of many."""


class AsyncPlayer:
    """Plays open episodes without waiting: environments run in threads, and samples too in a thread-safe engine."""

    def __init__(self, engine: Engine, sampling: Sampling, threads: Executor, max_open: int) -> None:
        """`threads` run the environments; at most `max_open` episodes are open at a time."""
        self._engine, self._sampling, self._threads = engine, sampling, threads
        # A thread-safe engine gets one thread for each open episode: the servers decide what runs together.
        self._sampling_threads = ThreadPoolExecutor(max_open, "next-turn") if engine.answers_threads else None
        self._pending: dict[Future[Any], tuple[int, Callable[[Any], object]]] = {}
        """Work that has begun: the index of its episode, and the function that receives the result."""

    def step(self, episodes: Sequence[SeededEpisode]) -> None:
        """Give every open episode something to do, then take the results that are ready; wait if there are none yet.

        Raises: EngineError.
        """
        busy = {index for index, _ in self._pending.values()}
        ready = []
        for seeded in episodes:
            episode = seeded.episode
            if seeded.index in busy or episode.ending is not None:
                continue
            if episode.awaits_environment:
                # A broken environment begins again in a later step: `settle` leaves its episode with work to do.
                future = self._threads.submit(episode.advance)
                self._pending[future] = (seeded.index, partial(_settle, seeded))
            else:
                ready.append(seeded)
        if self._sampling_threads is not None:
            for seeded in ready:
                completion = self._sampling_threads.submit(sample_one, self._engine, seeded, self._sampling)
                self._pending[completion] = (seeded.index, partial(_take, self._engine, seeded))
        elif ready:
            # This thread is busy until all of these have their turn; environments work on meanwhile.
            sample(self._engine, ready, self._sampling)
            self._take_results(timeout=0)
            return
        self._take_results(timeout=None)

    def close(self) -> None:
        """Wait for the work that has begun and drop its results: an environment must not be closed while it works."""
        for future in self._pending:
            future.cancel()
        wait(self._pending)
        if self._sampling_threads is not None:
            self._sampling_threads.shutdown()

    def _take_results(self, timeout: float | None) -> None:
        done, rest = wait(self._pending, timeout, FIRST_COMPLETED)
        if self._sampling_threads is None and done:
            done |= wait(rest, GRACE_S).done
        for future in sorted(done, key=lambda f: self._pending[f][0]):
            _, receive = self._pending.pop(future)
            receive(future.result())


def _settle(seeded: SeededEpisode, _: None) -> None:
    seeded.episode.settle()


def _take(engine: Engine, seeded: SeededEpisode, completion: Completion) -> None:
    seeded.episode.take(completion, engine.version)
