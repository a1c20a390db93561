"""Episodes in rounds: all open ones sample their next turn together, then their environments answer.

Numbers alone decide which turns are computed together: the order of the episodes, and when each of them ends. So equal
seeds give equal bytes, whichever environment answers first. Where `Episodes.is_in_step` is False, nobody waits for a
slow environment: an episode samples as soon as it has its answer (`as_ready.py`), and its log-probs round with the
calls that its turns happened to be in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from verizero.pipeline.environments.base import Environment
from verizero.pipeline.environments.conversing import Conversing
from verizero.pipeline.rollout.as_ready import AsReady
from verizero.pipeline.rollout.engine import Engine, Sampling
from verizero.pipeline.rollout.episode import Limits, Playing
from verizero.pipeline.rollout.next_turn import Seeded, sample
from verizero.pipeline.seeds import derive
from verizero.pipeline.types import Prompt, Rollout


class Closes(Protocol):
    """An object that holds something until the run's end."""

    def close(self) -> None:
        """End what it holds."""
        ...


class Makes(Protocol):
    """An environment's plug-in with its parameters."""

    def make(self, prompt: Prompt, task_seed: int, sample_seed: int) -> Environment:
        """Return a new environment for one episode."""
        ...


@dataclass(frozen=True)
class Episodes:
    """The parts that episodes are played with."""

    environments: Mapping[str, Makes]
    """By `Prompt.environment`."""
    conversing: Conversing
    limits: Limits
    threads: Executor
    """Runs the environments."""
    max_open: int = 256
    """Most episodes that are open at a time."""
    places: Sequence[Closes] = ()
    """The places of the environments, which end with the run."""
    is_in_step: bool = True
    """All open episodes wait for the slowest environment, so that equal seeds give equal bytes."""

    def close(self) -> None:
        """End the environments' processes, then the threads that might wait for them."""
        for place in self.places:
            place.close()
        self.threads.shutdown(cancel_futures=True)


EndedEpisode = Callable[[int, Rollout], None]
"""Receives an episode that has ended, with its place among all that were asked for."""


def play(
    engine: Engine,
    episodes: Episodes,
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
    games = list(_seeded(episodes, prompts, samples, seed, stream))
    out: dict[int, Rollout] = {}
    open_: list[int] = []
    waiting = list(range(len(games)))
    desk = None if episodes.is_in_step else AsReady(engine, sampling, episodes.threads, episodes.max_open)
    try:
        while open_ or waiting:
            free = episodes.max_open - len(open_)
            open_, waiting = sorted([*open_, *waiting[:free]]), waiting[free:]
            if desk is None:
                _advance([games[i].playing for i in open_], episodes.threads)
                sample(engine, [games[i] for i in open_ if games[i].playing.ending is None], sampling)
            else:
                desk.step([games[i] for i in open_])
            for i in open_:
                if games[i].playing.ending is not None:
                    games[i].playing.close()
                    out[i] = games[i].playing.rollout()
                    if on_end is not None:
                        on_end(i, out[i])
            open_ = [i for i in open_ if i not in out]
    finally:
        if desk is not None:
            desk.close()
        for game in games:
            game.playing.close()
    return [out[i] for i in range(len(games))]


def task_seed_of(seed: int, prompt: Prompt) -> int:
    """Return the seed of the task that all episodes of a prompt get, under the run's seed."""
    return derive(seed, "task", prompt.id)


def _seeded(
    episodes: Episodes, prompts: Sequence[Prompt], samples: int, seed: int, stream: tuple[str | int, ...]
) -> Iterable[Seeded]:
    times: Counter[str] = Counter()
    for place, prompt in enumerate(prompts):
        own = (prompt.id, times[prompt.id]) if times[prompt.id] else (prompt.id,)
        times[prompt.id] += 1
        assert prompt.environment is not None
        plugin = episodes.environments[prompt.environment]
        # One task for the whole group and for its greedy baseline, or their comparison means nothing.
        task_seed = task_seed_of(seed, prompt)
        for number in range(samples):
            names = (*stream, *own, number)
            sample_seed = derive(seed, "episode", *names)
            make = partial(plugin.make, prompt, task_seed, sample_seed)
            playing = Playing(prompt, number, make, episodes.conversing, episodes.limits, sample_seed)
            yield Seeded(playing, derive(seed, "rollout", *names), place * samples + number, names, seed)


def _advance(playing: Sequence[Playing], threads: Executor) -> None:
    """Let the environments of these episodes begin or answer, until each can sample or has ended."""
    todo = [p for p in playing if p.must_wait]
    while todo:
        list(threads.map(Playing.advance, todo))
        # A broken environment begins again, once for each retry.
        todo = [p for p in todo if not p.settle()]
