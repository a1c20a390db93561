"""The asynchronous source: batches in flight of several ranks are saved and continued by any number; its thread."""

import json
import threading
from typing import Any, ClassVar

import pytest
import torch

from tests.rollout.test_generate import EOS, Letters, answer
from tests.scripted_engine import ScriptedEngine
from tests.stages.sessions import session_of
from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.rollout.generate import Generation, ResponseKind
from verizero.pipeline.run.rollouts import AheadSource, share_of
from verizero.pipeline.run.state import InFlightBatch, RunState
from verizero.pipeline.train.ranks import Ranks
from verizero.pipeline.types import Prompt


class Side(Ranks):
    """One of two ranks that were asked one after the other, rank 0 last."""

    said: ClassVar[list[Any]] = []

    def gather(self, value):
        return [value, *self.said]


def test_the_batches_in_flight_of_two_ranks_are_resumed_by_any_number(tmp_path):
    with session_of(tmp_path, rollout={"max_staleness": 1}) as session:
        prompts = [*session.run.data.train[:5], session.run.data.train[0]]
        engine, renderer = session.workers.rollouts.engine, session.run.data.renderer
        engine.publish(0)
        kinds = [ResponseKind("rl", 3, Sampling(30)), ResponseKind("rl greedy", 1, Sampling(30, temperature=0))]

        def source_of(ranks):
            return AheadSource(Generation(engine, renderer, 3), ranks)

        def complete(source):
            rollouts = source.generate((), kinds, (0, 0), None)
            source._thread.shutdown()
            return rollouts

        Side.said.clear()
        for rank in (1, 0):
            own = Side(rank, 2)
            source = source_of(own)
            source.start(InFlightBatch(prompts, 4, 0), kinds)
            source.wait()
            if rank == 1:  # what the other rank sends
                Side.said.append((share_of(own, prompts).indices, source._queue[0].rollouts.result()))
            else:
                saved = source.snapshot()
            source._thread.shutdown()
        (whole,) = RunState.from_json(json.loads(json.dumps(RunState(in_flight=saved).to_json()))).in_flight
        assert [r.prompt_id for r in whole.rollouts[0]] == [p.id for p in prompts for _ in range(3)]
        alone = source_of(Ranks())
        alone.start(InFlightBatch(prompts, 4, 0), kinds)
        assert complete(alone) == [*whole.rollouts[0], *whole.rollouts[1]]
        for rank in range(3):
            ranks = Ranks(rank, 3)
            source, places = source_of(ranks), share_of(ranks, prompts).indices
            source.restore(whole, kinds)
            rollouts = complete(source)
            sampled, greedy = rollouts[: 3 * len(places)], rollouts[3 * len(places) :]
            assert [r.prompt_id for r in greedy] == [prompts[i].id for i in places]
            assert sampled == [r for i in places for r in whole.rollouts[0][3 * i : 3 * i + 3]]


@pytest.mark.parametrize("fails", [False, True])
def test_the_thread_computes_on_its_ranks_gpu_after_the_trainer_and_is_waited_for(fails, monkeypatch):
    calls = []
    trainer = threading.get_ident()

    def note(what, device=None):
        calls.append((what, device, threading.get_ident() == trainer))

    def work():
        note("work")
        if fails:
            raise ValueError("no")

    monkeypatch.setattr(torch.cuda, "set_device", lambda device: note("set", device))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: note("wait", device))
    gpu = torch.device("cuda", 3)
    source = AheadSource(Generation(ScriptedEngine(answer, EOS), Letters(), 0), Ranks(), None, device=gpu)
    error = source._submit(work).exception()
    source.close()
    assert isinstance(error, ValueError) == fails
    assert calls == [("wait", gpu, True), ("set", gpu, False), ("work", None, False), ("wait", gpu, False)]


class Resting(ScriptedEngine):
    """An engine that notes in which thread it wakes."""

    def __init__(self):
        super().__init__(answer, EOS)
        self.asleep, self.woken_by = False, list[int]()

    def rest(self):
        self.asleep = True

    def generate(self, *arguments, **named):
        if self.asleep:
            self.asleep = False
            self.woken_by.append(threading.get_ident())
        return super().generate(*arguments, **named)


def test_an_engine_that_rests_is_woken_before_the_policy_trains_on():
    """vLLM wakes with the policy's weights, which the generating thread would read while they change."""
    engine = Resting()
    engine.publish(0)
    source = AheadSource(Generation(engine, Letters(), 0), Ranks(), None)
    prompts, kinds = [Prompt("a", "a?", "exact", "x")], [ResponseKind("rl", 1, Sampling(5))]
    for _ in range(2):
        source.free_memory()
        source.start(InFlightBatch(prompts, 4, 0), kinds)
        source.free_memory()
        assert not engine.asleep, "a batch is in flight"
        source.generate(prompts, kinds, (0, 0), None)
    source.close()
    assert engine.woken_by == [threading.get_ident()] * 2
