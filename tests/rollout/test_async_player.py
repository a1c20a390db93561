"""Episodes that do not wait for each other: a slow environment delays its own episode only; nothing else changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.rollout.test_play import EOS, PROMPT, Counting, CountingEpisode, Noted, engine_of, episodes_of, ids_of
from verizero.pipeline.environments.base import Reply
from verizero.pipeline.errors import EngineError
from verizero.pipeline.rollout.engine import Completion, Request, Sampling
from verizero.pipeline.rollout.play import EpisodeSetup, play
from verizero.pipeline.seeds import derive
from verizero.pipeline.types import Message, Prompt, Rollout

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def ready(episodes: EpisodeSetup) -> EpisodeSetup:
    return replace(episodes, is_in_step=False)


def played(engine: Noted, episodes: EpisodeSetup, samples: int, on_end: object = None) -> list[Rollout]:
    return play(engine, episodes, [PROMPT], samples, Sampling(20), 3, "rl", 0, on_end=on_end)  # type: ignore[arg-type]


class Slow(Counting):
    """The first of the group's episodes has its first answer when the others have ended."""

    def __init__(self, last: int) -> None:
        super().__init__(last)
        self.others_ended = threading.Event()
        self.waited = 0

    def make(self, prompt: Prompt, task_seed: int, sample_seed: int) -> CountingEpisode:
        episode = super().make(prompt, task_seed, sample_seed)
        step = episode.step

        def late(message: Message) -> Reply:
            if sample_seed == derive(3, "episode", "rl", 0, "p", 0):
                assert self.others_ended.wait(PATIENCE_S), "the others waited for this one"
                self.waited += 1
            return step(message)

        episode.step = late  # type: ignore[method-assign]
        return episode


@pytest.mark.parametrize("answers_threads", [False, True])
def test_nobody_waits_for_a_slow_environment(threads: ThreadPoolExecutor, answers_threads: bool) -> None:
    owner, ended = Slow(last=3), list[int]()

    def on_end(place: int, _: Rollout) -> None:
        ended.append(place)
        if len(ended) == 2:
            owner.others_ended.set()

    engine = engine_of(seeded=True)
    engine.answers_threads = answers_threads
    rollouts = played(engine, ready(episodes_of(owner, threads)), 3, on_end)
    assert (ended[-1], owner.waited) == (0, 3)
    in_step = played(engine_of(seeded=True), episodes_of(Counting(last=3), threads), 3)
    assert rollouts == in_step, "only the order of the work differs"
    assert owner.open == 0


def test_an_engine_that_answers_threads_has_all_requests_at_once(threads: ThreadPoolExecutor) -> None:
    together = threading.Barrier(3, timeout=PATIENCE_S)

    class Meets(Noted):
        answers_threads = True

        def generate(
            self, requests: Sequence[Request], sampling: Sampling, listener: object = None
        ) -> list[list[Completion]]:
            if len(requests[0].prompt_ids) == len(ids_of(PROMPT.question)):
                together.wait()  # broken if fewer than three ask at the same time
            assert [len(r.seeds) for r in requests] == [1]
            return super().generate(requests, sampling, listener)

    engine = Meets(lambda _ids, _seed: (*ids_of("one"), EOS), EOS)
    engine.calls = []
    engine.publish(7)
    rollouts = played(engine, ready(episodes_of(Counting(last=2), threads)), 3)
    assert [len(r.turns) for r in rollouts] == [2, 2, 2]


@pytest.mark.parametrize("answers_threads", [False, True])
def test_an_environment_at_work_is_closed_after_its_work(threads: ThreadPoolExecutor, answers_threads: bool) -> None:
    """The engine fails for one episode while another's environment still answers."""
    at_work, closed_at_work = threading.Event(), []

    class Works(Counting):
        def make(self, prompt: Prompt, task_seed: int, sample_seed: int) -> CountingEpisode:
            episode = super().make(prompt, task_seed, sample_seed)
            close, is_working = episode.close, threading.Event()

            def slow(message: Message) -> Reply:
                is_working.set()
                at_work.set()
                time.sleep(0.05 if sample_seed == derive(3, "episode", "rl", 0, "p", 0) else 0.5)
                is_working.clear()
                return Reply((Message("user", "on"),))

            def checked() -> None:
                closed_at_work.append(is_working.is_set())
                close()

            episode.step, episode.close = slow, checked  # type: ignore[method-assign]
            return episode

    class FailsLater(Noted):
        def generate(self, *arguments: object, **options: object) -> list[list[Completion]]:
            if self.calls:
                assert at_work.wait(PATIENCE_S)
                raise EngineError("gone")
            return super().generate(*arguments, **options)  # type: ignore[arg-type]

    owner = Works(last=9)
    engine = FailsLater(lambda _ids, _seed: (*ids_of("one"), EOS), EOS)
    engine.calls, engine.answers_threads = [], answers_threads
    engine.publish(7)
    with pytest.raises(EngineError, match="gone"):
        played(engine, ready(episodes_of(owner, threads, max_open=2)), 2)
    assert owner.open == 0
    assert closed_at_work
    assert not any(closed_at_work)
