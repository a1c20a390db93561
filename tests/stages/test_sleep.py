"""An engine on the trainer's GPU: it is asleep whenever anything trains, and wakes with the weights that it had."""

from contextlib import contextmanager

import pytest
import torch

from tests.stages.marks import MARKED
from tests.stages.sessions import replacing, run_all
from tests.stages.start import start as begin
from tests.stages.tiny import tiny
from verizero.pipeline.errors import NonFiniteError
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.run.opening import open_run
from verizero.pipeline.train.reward_model import RewardModel

pytestmark = pytest.mark.run  # whole runs


class Sleeper:
    """An engine that drops its weights at `rest`, as vLLM does at level 2, and takes the policy's when it is asked."""

    is_fast = fallback_reason = None
    answers_threads = False

    def __init__(self, engine, model):
        self.engine, self.model = engine, model
        self.is_asleep = True
        self.published = self.present()
        self.num_woken = 0

    def present(self):
        return [p.detach().clone() for p in self.model.parameters()]

    @property
    def version(self):
        return int(self.engine.version)

    def publish(self, version):
        self.is_asleep, self.published = False, self.present()
        self.engine.publish(version)

    def generate(self, requests, sampling, reader=None):
        if self.is_asleep:
            self.num_woken += 1
            equal = all(torch.equal(a, b) for a, b in zip(self.present(), self.published, strict=True))
            assert equal, "the policy has trained on, and no publish followed"
            self.publish(self.version)
        return list(self.engine.generate(requests, sampling, reader))

    def rest(self):
        self.is_asleep = True

    def counts(self):
        return {}

    def close(self):
        self.engine.close()


@contextmanager
def watched(changes, folder):
    """A session whose engine sleeps, a wrapper of what must find it asleep, and the stages in which that was called."""
    trained = []
    begun = (begin(), MARKED) if len(changes["stages"]) > 1 else ()
    with open_run(tiny(changes, begun), folder, folder / "run", "auto", Progress()) as session:
        backend, source = session.workers.backend, session.workers.rollouts
        sleeper = source.generation.engine = Sleeper(source.engine, backend.model)
        step, start = backend.step, backend.start

        def asleep(act):
            def run(*arguments):
                stage = session.state.stage.name
                assert sleeper.is_asleep or source.in_flight, f"the engine is awake while {stage} trains"
                trained.append(stage)
                return act(*arguments)

            return run

        backend.step, backend.start = asleep(step), asleep(start)
        yield session, asleep, trained


RL = {"sft": None, "rl": {"select": {"keep": "all"}}}
SAMPLED = {"prompts": 16, "samples": 6}
CALM = {"learning_rate": 1e-4}
AHEAD = {
    "stages": ["sft", "rl"],
    "sft": {"steps": 2, "optimizer": CALM},
    "rl": {"rounds": 1, "select": {"keep": "all"}},
    "rollout": {"max_staleness": 1},
    "data": {"evaluation": []},  # between the stages, it would publish what the first one made
}
ROUND = {"rounds": 1, "steps_per_round": 2, "prompts_per_step": 3}
STAGES = {
    "stages": ["sft", "rl", "preference", "reward_model", "distill"],
    "sft": {"steps": 4, "evaluate_every": 2, "optimizer": CALM},
    "rl": {**ROUND, "select": {"keep": "all"}, "optimizer": CALM},
    "preference": {"loss": {"name": "dpo"}, "steps": 2, "batch_size": 4, "sampled": SAMPLED, "optimizer": CALM},
    "reward_model": {"steps": 2, "batch_size": 8, "sampled": SAMPLED, "held_out": 0.5},
    "distill": {**ROUND, "teacher": {"hint": "{question} {answer} "}, "group_size": 4, "optimizer": CALM},
}


@pytest.mark.parametrize("changes", [STAGES, AHEAD], ids=["every stage", "ahead"])
def test_nothing_trains_while_the_engine_is_awake(changes, tmp_path, monkeypatch):
    with watched(changes, tmp_path) as (session, asleep, trained):
        monkeypatch.setattr(RewardModel, "update", asleep(RewardModel.update))
        run_all(session)
    assert set(trained) == set(session.run.recipe.stage_names)


def test_an_update_that_is_refused_leaves_the_engine_its_weights(tmp_path):
    """No publish follows a refused update, so the next step wakes the engine with the version that it had."""
    with watched({**RL, "stages": ["rl"]}, tmp_path) as (session, _, _):
        backend, sleeper, refused = session.workers.backend, session.workers.rollouts.engine, []

        def refuse(plain, groups):
            if not refused:
                refused.append(True)
                session.workers.rollouts.free_memory()
                raise NonFiniteError("no")
            return plain(groups)

        run_all(session, replacing(update=refuse))
    assert refused
    assert sleeper.num_woken >= 1
    assert backend.model is sleeper.model
