"""Generation ahead of the update: which weights draw which step, how old responses may be, and equal bytes always."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.stages.recorded import GRPO, run
from tests.stages.sessions import replacing, round_of, rows, run_all, session_of, train_round
from tests.stages.start import ONLY_RL, start
from tests.stages.tiny import tiny
from verizero.pipeline.errors import EngineError
from verizero.pipeline.report.progress import Silent
from verizero.pipeline.rollout.engine import Completion, EndedReader, Request, Sampling
from verizero.pipeline.rollout.scripted_engine import ScriptedEngine
from verizero.pipeline.run.ahead_source import AheadSource
from verizero.pipeline.run.opening import open_run
from verizero.pipeline.run.session import Session
from verizero.pipeline.stages.rl import rl_phases
from verizero.pipeline.types import Group, Rollout, StepMetrics

pytestmark = pytest.mark.integration  # whole runs

SIX = (GRPO, "rl.steps_per_round=6")


def ahead(most: int, stretch: int | None = None) -> tuple[str, ...]:
    how = (f"rollout.max_staleness={most}",)
    return how if stretch is None else (*how, "rollout.in_flight=interrupt", f"rollout.interrupt_tokens={stretch}")


@functools.cache
def versions(*overrides: str) -> list[list[int]]:
    """For each step, the versions (of its first policy: 0) that sampled what it trained on."""
    _, calls = run(*overrides)
    trained: list[list[Group]] = [arguments[0] for arguments, _ in calls["update"]]
    drawn = [[m.rollout.policy_version for g in groups for m in g.members] for groups in trained]
    return [[v - drawn[0][0] for v in sorted(set(one))] for one in drawn]


@pytest.mark.parametrize("most", [0, 1, 2, 3])
def test_step_s_is_sampled_by_the_policy_of_step_s_minus_k(most: int) -> None:
    assert versions(*SIX, *ahead(most)) == [[max(0, step - most)] for step in range(6)]


@pytest.mark.parametrize("most", [1, 2])
def test_what_is_logged_of_it(most: int) -> None:
    steps, calls = run(*SIX, *ahead(most))
    ages = [min(step, most) for step in range(6)]
    assert [m["staleness/max"] for m in steps] == [m["staleness/mean"] for m in steps] == ages
    assert [m.get("rows/off_policy", 0.0) for m in steps] == [18.0 if age else 0.0 for age in ages]
    assert [m["groups/in_flight"] for m in steps] == [3.0 * min(most, 5 - step) for step in range(6)]
    assert all(m["groups/stale"] == 0 for m in steps)
    assert len(calls["publish"]) == 6


def test_without_it_nothing_is_logged_and_nothing_changes() -> None:
    steps, _ = run(*SIX)
    assert not [name for name in steps[0] if name.startswith(("staleness/", "groups/stale", "groups/in_flight"))]
    assert run(*SIX, "rollout.max_staleness=0")[0] == steps


@pytest.mark.parametrize("how", [ahead(3), ahead(2, 4)], ids=str)
def test_the_same_seed_gives_the_same_bytes(how: tuple[str, ...]) -> None:
    first, calls = run(*SIX, *how)
    again, others = run(*SIX, *how, "name=again")
    assert first == again
    assert [r for _, r in calls["generate"]] == [r for _, r in others["generate"]]


class Weights:
    """Remembers the weights of every version, and scores responses with them."""

    def __init__(self) -> None:
        self.kept: dict[int, dict[str, torch.Tensor]] = {}
        self.first = 0

    def update(self, session: Session, plain: Any, groups: Sequence[Group]) -> StepMetrics:
        model, version = session.workers.backend.model, session.state.policy_version
        self.kept[version] = {k: v.clone() for k, v in model.state_dict().items()}
        self.check(session, [m.rollout for g in groups for m in g.members])
        model.load_state_dict(self.kept[version])
        metrics: StepMetrics = plain(groups)
        return metrics

    def scored(self, session: Session, rollout: Rollout, version: int) -> torch.Tensor:
        """[T] log-probs of the response's tokens by the policy of that version."""
        session.workers.backend.model.load_state_dict(self.kept[version])
        ids = torch.tensor([[*rollout.prompt_ids, *rollout.response_ids]])
        where = torch.arange(ids.shape[1])[None] >= len(rollout.prompt_ids)
        with torch.no_grad():
            found, _ = session.workers.backend.logprobs(ids, where, 1.0)
        return found[0, len(rollout.prompt_ids) :]

    def check(self, session: Session, rollouts: Sequence[Rollout]) -> None:
        for rollout in rollouts:
            wanted = self.scored(session, rollout, rollout.policy_version)
            assert torch.allclose(torch.tensor(rollout.logprobs), wanted, atol=1e-4)


class Stretches(Weights):
    """The first stretch is of the oldest weights, the next of those after; the last draws all the rest."""

    def __init__(self, most: int, stretch: int) -> None:
        super().__init__()
        self.most, self.stretch = most, stretch
        self.num_mixed = 0

    def check(self, session: Session, rollouts: Sequence[Rollout]) -> None:
        present = session.state.policy_version
        for rollout in rollouts:
            oldest = rollout.policy_version
            assert present - oldest <= self.most
            said = torch.tensor(rollout.logprobs)
            for version in range(oldest, present + 1):
                start = (version - oldest) * self.stretch
                end = start + self.stretch if version < present else None
                wanted = self.scored(session, rollout, version)[start:end]
                assert torch.allclose(said[start:end], wanted, atol=1e-4)
            self.num_mixed += oldest < present and len(said) > self.stretch


def whole_run(folder: Path, watch: Weights, *overrides: str) -> list[dict[str, Any]]:
    """A run in which the watched policy moves at each of six steps."""
    kept = [
        start("sft.steps=60"),
        *ONLY_RL,
        "rl.select.keep=all",
        "rl.rounds=1",
        "data.evaluation=[]",
        "rl.optimizer.learning_rate=0.01",
    ]
    with open_run(tiny(overrides=[*SIX, *kept, *overrides]), folder, folder, "auto", Silent()) as session:
        run_all(session, replacing(update=functools.partial(watch.update, session)))
        return rows(session)


@pytest.mark.parametrize("most", [1, 3])
def test_responses_are_of_the_weights_they_name_though_others_are_trained_meanwhile(tmp_path: Path, most: int) -> None:
    watch = Weights()
    whole_run(tmp_path, watch, *ahead(most))
    assert len(watch.kept) == 6


@pytest.mark.parametrize(("most", "stretch"), [(1, 5), (2, 4)])
def test_interrupted_responses_go_on_with_new_weights(tmp_path: Path, most: int, stretch: int) -> None:
    watch = Stretches(most, stretch)
    whole_run(tmp_path, watch, *ahead(most, stretch))
    assert watch.num_mixed > 20


def test_generation_goes_on_while_the_update_runs(tmp_path: Path) -> None:
    """Each would wait for the other for ever if they took turns."""
    updating, drawing = threading.Event(), threading.Event()

    class Meets(ScriptedEngine):
        def generate(
            self, requests: Sequence[Request], sampling: Sampling, reader: EndedReader | None = None
        ) -> list[list[Completion]]:
            if threading.current_thread() is not threading.main_thread():
                drawing.set()
                assert updating.wait(60)
            return super().generate(requests, sampling, reader)

    with session_of(tmp_path, rollout={"max_staleness": 1}, rl={"select": {"keep": "all"}}) as session:
        assert isinstance(session.workers.rollouts.engine, ScriptedEngine)
        session.workers.rollouts.generation.engine = Meets(
            session.workers.rollouts.engine.script, session.workers.rollouts.engine.eos_id
        )
        plain = rl_phases(session).update

        def update(groups: Sequence[Group]) -> StepMetrics:
            if session.state.rl_step == 0:
                updating.set()
                assert drawing.wait(60)
            return plain(groups)

        train_round(session, update=update)
        assert [r["metrics"]["staleness/max"] for r in rows(session)] == [0, 1, 1]


def test_what_fails_in_the_thread_ends_the_run(tmp_path: Path) -> None:
    class Breaks(ScriptedEngine):
        def generate(
            self, requests: Sequence[Request], sampling: Sampling, reader: EndedReader | None = None
        ) -> list[list[Completion]]:
            if threading.current_thread() is not threading.main_thread():
                raise EngineError("the cable was cut")
            return super().generate(requests, sampling, reader)

    with session_of(tmp_path, rollout={"max_staleness": 1}, rl={"select": {"keep": "all"}}) as session:
        assert isinstance(session.workers.rollouts.engine, ScriptedEngine)
        session.workers.rollouts.generation.engine = Breaks(
            session.workers.rollouts.engine.script, session.workers.rollouts.engine.eos_id
        )
        with pytest.raises(EngineError, match="the cable was cut"):
            train_round(session)


def test_nothing_is_in_flight_after_the_last_round_nor_past_the_budget(tmp_path: Path) -> None:
    each = 6 * 30
    changes = {"rl": {"max_tokens": 4 * 3 * each, "select": {"keep": "all"}}, "rollout": {"max_staleness": 2}}
    with session_of(tmp_path, **changes) as session:
        assert isinstance(session.workers.rollouts, AheadSource)
        for number in (1, 2):
            train_round(session, round_of(session, number))
            session.state.step = 0
        assert session.workers.rollouts.in_flight == []
        assert session.state.stage.num_tokens <= 4 * 3 * each
