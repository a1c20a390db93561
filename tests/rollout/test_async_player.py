"""Episodes that do not wait for each other: a slow environment delays its own episode only; nothing else changes."""

import threading
import time
from dataclasses import replace

import pytest

from tests.processes import PATIENCE_S
from tests.rollout.test_play import EOS, PROMPT, Counting, Noted, engine_of, episodes_of, ids_of
from verizero.pipeline.environments.base import Reply
from verizero.pipeline.errors import EngineError
from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.rollout.play import EpisodeSetup, play
from verizero.pipeline.seeds import derive
from verizero.pipeline.types import Message, Rollout

FIRST = derive(3, "episode", "rl", 0, "p", 0)
"""The seed of the group's first episode."""


def ready(episodes: EpisodeSetup) -> EpisodeSetup:
    return replace(episodes, is_in_step=False)


def played(engine: Noted, episodes: EpisodeSetup, samples: int, on_end: object = None) -> list[Rollout]:
    return play(engine, episodes, [PROMPT], samples, Sampling(20), 3, "rl", 0, on_end=on_end)


@pytest.mark.parametrize("answers_threads", [False, True])
def test_nobody_waits_for_a_slow_environment(threads, answers_threads):
    """The first of the group's episodes has its first answer when the others have ended."""
    others_ended, waited, ended = threading.Event(), [], []

    def late(episode, sample_seed):
        step = episode.step

        def answer(message):
            assert others_ended.wait(PATIENCE_S), "the others waited for this one"
            waited.append(message)
            return step(message)

        if sample_seed == FIRST:
            episode.step = answer

    def on_end(place, _):
        ended.append(place)
        if len(ended) == 2:
            others_ended.set()

    engine, owner = engine_of(seeded=True), Counting(last=3, change=late)
    engine.answers_threads = answers_threads
    rollouts = played(engine, ready(episodes_of(owner, threads)), 3, on_end)
    assert (ended[-1], len(waited)) == (0, 3)
    in_step = played(engine_of(seeded=True), episodes_of(Counting(last=3), threads), 3)
    assert rollouts == in_step, "only the order of the work differs"
    assert owner.open == 0


def test_an_engine_that_answers_threads_has_all_requests_at_once(threads):
    together = threading.Barrier(3, timeout=PATIENCE_S)

    class Meets(Noted):
        answers_threads = True

        def generate(self, requests, sampling, listener=None):
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
def test_an_environment_at_work_is_closed_after_its_work(threads, answers_threads):
    """The engine fails for one episode while another's environment still answers."""
    at_work, closed_at_work = threading.Event(), []

    def works(episode, sample_seed):
        close, is_working = episode.close, threading.Event()

        def slow(message):
            is_working.set()
            at_work.set()
            time.sleep(0.05 if sample_seed == FIRST else 0.5)
            is_working.clear()
            return Reply((Message("user", "on"),))

        def checked():
            closed_at_work.append(is_working.is_set())
            close()

        episode.step, episode.close = slow, checked

    class FailsLater(Noted):
        def generate(self, *arguments, **options):
            if self.calls:
                assert at_work.wait(PATIENCE_S)
                raise EngineError("gone")
            return super().generate(*arguments, **options)

    owner = Counting(last=9, change=works)
    engine = FailsLater(lambda _ids, _seed: (*ids_of("one"), EOS), EOS)
    engine.calls, engine.answers_threads = [], answers_threads
    engine.publish(7)
    with pytest.raises(EngineError, match="gone"):
        played(engine, ready(episodes_of(owner, threads, max_open=2)), 2)
    assert owner.open == 0
    assert closed_at_work
    assert not any(closed_at_work)
