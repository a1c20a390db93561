"""Episodes that wait for nobody: each samples its next turn as soon as its environment has answered.

A slow tool then holds its own episode only. Which turns are computed together depends on time, so log-probs may differ
in their last digits from run to run, and a resumed run may differ from one that was never killed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

from verizero.pipeline.rollout.engine import Completion, Engine, Sampling
from verizero.pipeline.rollout.next_turn import Seeded, sample, sample_one

GRACE_S = 0.01
"""Seconds to wait for more episodes after the first that is ready: a call for one row costs nearly that of many."""


class AsReady:
    """The work under way of open episodes: environments in threads, and samples too if the engine answers threads."""

    def __init__(self, engine: Engine, sampling: Sampling, threads: Executor, max_open: int) -> None:
        """`threads` run the environments; at most `max_open` episodes are open at a time."""
        self._engine, self._sampling, self._threads = engine, sampling, threads
        # An engine that answers threads has one waiting for each open episode: the servers decide what runs together.
        self._askers = ThreadPoolExecutor(max_open, "next-turn") if engine.answers_threads else None
        self._under_way: dict[Future[Any], tuple[int, Callable[[Any], object]]] = {}
        """The episode's number, and what takes the result."""

    def step(self, games: Sequence[Seeded]) -> None:
        """Give every open episode something to do, then take what is there; wait if there is nothing yet.

        Raises: EngineError.
        """
        busy = {number for number, _ in self._under_way.values()}
        ready = []
        for game in games:
            playing = game.playing
            if game.number in busy or playing.ending is not None:
                continue
            if playing.must_wait:
                # A broken environment begins again in a later step: `settle` leaves its episode with work to do.
                future = self._threads.submit(playing.advance)
                self._under_way[future] = (game.number, partial(_settle, game))
            else:
                ready.append(game)
        if self._askers is not None:
            for game in ready:
                completion = self._askers.submit(sample_one, self._engine, game, self._sampling)
                self._under_way[completion] = (game.number, partial(_take, self._engine, game))
        elif ready:
            # This thread is busy until all of these have their turn; environments work on meanwhile.
            sample(self._engine, ready, self._sampling)
            self._take_done(timeout=0)
            return
        self._take_done(timeout=None)

    def close(self) -> None:
        """Wait for the work under way, whose results nobody wants. An environment must not be closed while it works."""
        for future in self._under_way:
            future.cancel()
        wait(self._under_way)
        if self._askers is not None:
            self._askers.shutdown()

    def _take_done(self, timeout: float | None) -> None:
        done, rest = wait(self._under_way, timeout, FIRST_COMPLETED)
        if self._askers is None and done:
            done |= wait(rest, GRACE_S).done
        for future in sorted(done, key=lambda f: self._under_way[f][0]):
            _, take = self._under_way.pop(future)
            take(future.result())


def _settle(game: Seeded, _: None) -> None:
    game.playing.settle()


def _take(engine: Engine, game: Seeded, completion: Completion) -> None:
    game.playing.take(completion, engine.version)
