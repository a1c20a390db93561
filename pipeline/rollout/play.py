"""Plays episodes: open ones sample their next turn, then their environments answer.

By default all open episodes go in step. Which turns are computed together then depends on numbers alone: the order of
the episodes, and when each of them ends. So equal seeds give equal bytes, whichever environment answers first. With
`EpisodeSetup.is_in_step` False each samples its next turn as soon as its environment has answered (`AsyncPlayer`), so a
slow tool delays its own episode only. Which turns are computed together then depends on time, so log-probs may differ
in their last digits from run to run, and a resumed run may differ from one that was never killed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from verizero.pipeline.environments.base import BoundEnvironment
from verizero.pipeline.environments.conversing import Conversing
from verizero.pipeline.rollout.engine import Completion, Engine, Request, Sampling
from verizero.pipeline.rollout.episode import EpisodeLimits, OpenEpisode
from verizero.pipeline.seeds import derive
from verizero.pipeline.types import Prompt, Rollout


@dataclass(frozen=True)
class EpisodeSetup:
    """The objects and limits that episodes are played with."""

    environments: Mapping[str, BoundEnvironment]
    """By `Prompt.environment`."""
    conversing: Conversing
    limits: EpisodeLimits
    threads: Executor
    """Runs the environments."""
    max_open: int = 256
    """Most episodes that are open at a time."""
    is_in_step: bool = True
    """All open episodes wait for the slowest environment, so that equal seeds give equal bytes."""

    def close(self) -> None:
        """End the threads."""
        self.threads.shutdown(cancel_futures=True)


EndedEpisode = Callable[[int, Rollout], None]
"""Receives an episode that has ended, with its index among all of the call."""


def play(
    engine: Engine,
    setup: EpisodeSetup,
    prompts: Sequence[Prompt],
    samples: int,
    sampling: Sampling,
    seed: int,
    *stream: str | int,
    on_end: EndedEpisode | None = None,
) -> list[Rollout]:
    """Return `samples` episodes of each prompt, prompt by prompt. Equal seeds and streams give equal episodes.

    All members of a group get the same task. An environment that breaks starts again with the same seeds; after the
    last retry its episode has the verdict "environment_error". `sampling.max_tokens` is the limit of a turn.
    """
    episodes = list(_seeded(setup, prompts, samples, seed, stream))
    rollouts: dict[int, Rollout] = {}
    open_: list[int] = []
    waiting = list(range(len(episodes)))
    player = None if setup.is_in_step else AsyncPlayer(engine, sampling, setup.threads, setup.max_open)
    try:
        while open_ or waiting:
            free = setup.max_open - len(open_)
            open_, waiting = sorted([*open_, *waiting[:free]]), waiting[free:]
            if player is None:
                _advance([episodes[i].episode for i in open_], setup.threads)
                sample(engine, [episodes[i] for i in open_ if episodes[i].episode.ending is None], sampling)
            else:
                player.step([episodes[i] for i in open_])
            for i in open_:
                episode = episodes[i].episode
                if episode.ending is not None:
                    episode.close()
                    rollouts[i] = episode.rollout()
                    if on_end is not None:
                        on_end(i, rollouts[i])
            open_ = [i for i in open_ if i not in rollouts]
    finally:
        if player is not None:
            player.close()
        for seeded in episodes:
            seeded.episode.close()
    return [rollouts[i] for i in range(len(episodes))]


def _seeded(
    setup: EpisodeSetup, prompts: Sequence[Prompt], samples: int, seed: int, stream: tuple[str | int, ...]
) -> Iterable[SeededEpisode]:
    times: Counter[str] = Counter()
    for prompt_index, prompt in enumerate(prompts):
        # A prompt that comes twice in the call gets other numbers the second time.
        prompt_names = (prompt.id, times[prompt.id]) if times[prompt.id] else (prompt.id,)
        times[prompt.id] += 1
        assert prompt.environment is not None
        plugin = setup.environments[prompt.environment]
        # One task for the whole group and for its greedy baseline, or their comparison means nothing.
        task_seed = derive(seed, "task", prompt.id)
        for number in range(samples):
            names = (*stream, *prompt_names, number)
            sample_seed = derive(seed, "episode", *names)
            make = partial(plugin.make, prompt, task_seed, sample_seed)
            episode = OpenEpisode(prompt, number, make, setup.conversing, setup.limits, sample_seed)
            first_seed = derive(seed, "rollout", *names)
            yield SeededEpisode(episode, prompt_index * samples + number, first_seed, seed, names)


def _advance(episodes: Sequence[OpenEpisode], threads: Executor) -> None:
    """Let the environments of these episodes begin or answer, until each can sample or has ended."""
    waiting = [e for e in episodes if e.awaits_environment]
    while waiting:
        list(threads.map(OpenEpisode.advance, waiting))
        # A broken environment begins again, once for each retry.
        waiting = [e for e in waiting if not e.settle()]


@dataclass(frozen=True)
class SeededEpisode:
    """An open episode, its index in a call of `play`, and its random numbers."""

    episode: OpenEpisode
    index: int
    """The index of the episode among all of the call."""
    first_seed: int
    """The seed of the first turn: that of a response without environment."""
    seed: int
    """The root of all random numbers."""
    seed_names: tuple[str | int, ...]
    """The names from which the seeds of later turns are derived."""

    def turn_seed(self) -> int:
        """Return the seed of the next turn."""
        turn = self.episode.turn
        return self.first_seed if turn == 0 else derive(self.seed, "rollout", *self.seed_names, "turn", turn)


def sample(engine: Engine, episodes: Sequence[SeededEpisode], sampling: Sampling) -> None:
    """Sample the next turn of each of the episodes, and give it to them."""
    # One call for each limit: a call has one max_tokens. Equal prompts, as of a group's first turn, are one request.
    by_room: dict[int, dict[tuple[int, ...], list[SeededEpisode]]] = {}
    for seeded in episodes:
        room = seeded.episode.room(sampling.max_tokens)
        by_room.setdefault(room, {}).setdefault(seeded.episode.ids, []).append(seeded)
    for room, by_ids in sorted(by_room.items()):
        requests = [
            Request(ids, tuple(s.turn_seed() for s in same), tuple(s.index for s in same))
            for ids, same in by_ids.items()
        ]
        answers = engine.generate(requests, replace(sampling, max_tokens=room))
        for same, completions in zip(by_ids.values(), answers, strict=True):
            for seeded, completion in zip(same, completions, strict=True):
                seeded.episode.take(completion, engine.version)


def sample_one(engine: Engine, seeded: SeededEpisode, sampling: Sampling) -> Completion:
    """Return the next turn of one episode, in any thread, if the engine `answers_threads`."""
    room = seeded.episode.room(sampling.max_tokens)
    request = Request(seeded.episode.ids, (seeded.turn_seed(),), (seeded.index,))
    ((completion,),) = engine.generate([request], replace(sampling, max_tokens=room))
    return completion


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
        """Give open episodes work, then take results that are ready; wait if there are none. Raises: EngineError."""
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
