"""Plays episodes: open ones sample their next turn, then their environments answer.

By default all open episodes go in step. Which turns are computed together then depends on numbers alone: the order of
the episodes, and when each of them ends. So equal seeds give equal bytes, whichever environment answers first. With
`EpisodeSetup.is_in_step` False, no episode waits for the slow environment of another (`async_player.py`), and the
rounding of its log-probs depends on the calls that its turns happened to be in.
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
from verizero.pipeline.rollout.async_player import AsyncPlayer
from verizero.pipeline.rollout.engine import Engine, Sampling
from verizero.pipeline.rollout.episode import EpisodeLimits, OpenEpisode
from verizero.pipeline.rollout.next_turn import SeededEpisode, sample
from verizero.pipeline.seeds import derive
from verizero.pipeline.types import Prompt, Rollout


class Closable(Protocol):
    """An object with processes or connections that end with the run."""

    def close(self) -> None:
        """End them."""
        ...


class EnvironmentMaker(Protocol):
    """An environment's plug-in with its parameters."""

    def make(self, prompt: Prompt, task_seed: int, sample_seed: int) -> Environment:
        """Return a new environment for one episode."""
        ...


@dataclass(frozen=True)
class EpisodeSetup:
    """The objects and limits that episodes are played with."""

    environments: Mapping[str, EnvironmentMaker]
    """By `Prompt.environment`."""
    conversing: Conversing
    limits: EpisodeLimits
    threads: Executor
    """Runs the environments."""
    max_open: int = 256
    """Most episodes that are open at a time."""
    hosts: Sequence[Closable] = ()
    """The hosts of the environments, which end with the run."""
    is_in_step: bool = True
    """All open episodes wait for the slowest environment, so that equal seeds give equal bytes."""

    def close(self) -> None:
        """End the environments' processes, then the threads that might wait for them."""
        for host in self.hosts:
            host.close()
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
    engine.forget()  # so that what is computed depends on these episodes alone, and a resumed run has the same bytes
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
        engine.forget()
    return [rollouts[i] for i in range(len(episodes))]


def task_seed_of(seed: int, prompt: Prompt) -> int:
    """Return the seed of the task that all episodes of a prompt get, under the run's seed."""
    return derive(seed, "task", prompt.id)


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
        task_seed = task_seed_of(seed, prompt)
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
