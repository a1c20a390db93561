"""Rounds of RL with scripted answers: short batches, refused updates, graders that fail, the reference's schedule."""

import json
from itertools import pairwise

import pytest
import torch

from tests.loop.scripted import group_of, loop_of, mixed
from tests.stages.sessions import lines, lose, round_of, rows, session_of, train_round, weights
from verizero.pipeline.errors import NonFiniteError, RunError
from verizero.pipeline.loop.rounds import begin_round, move_reference, update_if_enough_groups
from verizero.pipeline.run.choose_checkpoint import newest_whole
from verizero.pipeline.run.saving import save
from verizero.pipeline.run.state import Item
from verizero.pipeline.types import Verdict


def test_failed_graders_leave_their_groups_and_raise_an_alarm(tmp_path):
    heard = []
    with session_of(tmp_path, scoring={"retries": 0}) as session:
        lose(session, 5, Verdict("verifier_error", reason="lost"))
        session.recorder.listener = lambda name, fields: heard.append((name, fields))
        train_round(session)
        steps = [r for r in rows(session) if r["kind"] == "step"]
        metrics = [r["metrics"] for r in steps]
        written = [r for r in rows(session) if r["kind"] == "alarm"]
        sampled = [json.loads(x) for x in (session.run.folder / "rollouts.jsonl").read_text().splitlines()]
        said = lines(session)
    assert all(0.15 < m["verdict/verifier_error"] < 0.3 for m in metrics)
    lost = [r for r in sampled if r["status"] == "verifier_error"]
    assert lost
    assert all(r["reward"] is None for r in lost)
    assert any("graders failed on" in line and "none was scored 0" in line for line in said)
    alarms = [fields for name, fields in heard if name == "verizero.verifier.alarm"]
    assert len(alarms) == sum("graders failed on" in line for line in said)
    assert all(0.1 < a["failure_rate"] < 0.4 and a["first"].endswith("verifier_error: lost") for a in alarms)
    assert [(r["alarm"], r["failure_rate"]) for r in written] == [("verifier", a["failure_rate"]) for a in alarms]
    assert {r["step"] for r in written} <= {r["step"] for r in steps}
    assert written[-1]["step"] == steps[-1]["step"]
    assert all(m["rows"] < 6 * m["groups/trained"] for m in metrics if m["groups/trained"])


class Down:
    """A grader that fails on everything while `steps` says so."""

    def __init__(self, session, steps, inner):
        self.session, self.steps, self.inner = session, steps, inner

    def score(self, attempts):
        if self.session.state.rl_step in self.steps:
            return [Verdict("sandbox_error", reason="no sandbox")] * len(attempts)
        verdicts = self.inner.score(attempts)
        return verdicts


def graders_down(session, steps):
    scorer = session.workers.graders.scorer
    scorer.graders = {k: Down(session, steps, v) for k, v in scorer.graders.items()}


DOWN = {
    "from the start": (range(9), 3),
    "later": (range(2, 9), 5),
    "in the last step": ({8}, 9),
    "in the last two": ({7, 8}, 9),
    "for two steps": ({3, 4}, None),
    "twice for two steps": ({1, 2, 4, 5}, None),
}


NINE_STEPS = {
    "rl": {"rounds": 1, "steps_per_round": 9, "select": {"keep": "all", "carry_over": False}},
    "scoring": {"retries": 0},
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The weights after the nine steps with graders that never fail."""
    with session_of(tmp_path_factory.mktemp("up"), **NINE_STEPS) as session:
        train_round(session)
        return weights(session)


@pytest.mark.run
@pytest.mark.parametrize("case", list(DOWN))
def test_a_run_without_graders_stops_and_goes_on_as_if_they_had_never_failed(case, tmp_path, undisturbed):
    """After three steps of nothing in a row, or at the end of the stage."""
    steps, stops_after = DOWN[case]
    with session_of(tmp_path, **NINE_STEPS) as session:
        graders_down(session, steps)
        if stops_after is None:
            train_round(session)
            assert session.state.stage.lost_steps == []
            return
        with pytest.raises(
            RunError, match=r"graders failed and nothing trained in .* sandbox_error: no sandbox.*same "
        ):
            train_round(session)
        assert len([r for r in rows(session) if r["kind"] == "step"]) == stops_after
    with session_of(tmp_path, **NINE_STEPS) as session:
        assert session.state.rl_step == min(steps)
        session.workers.rollouts.publish(session.workers.backend, session.state.policy_version)
        train_round(session)
        assert all(torch.equal(a, b) for a, b in zip(undisturbed, weights(session), strict=True))


@pytest.mark.parametrize(("num", "trains"), [(0, False), (1, True), (3, True)])
def test_a_short_batch_trains_and_an_empty_one_does_not(num, trains):
    loop = loop_of()
    updates = []
    groups = [group_of(n, mixed(n)) for n in range(num)]
    phases = loop.phases(lambda batch: updates.append(len(batch)) or {"loss": 1.0})
    metrics = update_if_enough_groups(loop.setup, loop.state, loop.recorder, phases, groups)
    assert (metrics is not None, updates) == (trains, [num] if trains else [])
    assert bool(loop.lines) is not trains


def test_refused_updates_end_the_run_only_in_a_row():
    loop = loop_of()
    refused = iter([True, True, False, True, True, True])

    def update(groups):
        if next(refused):
            raise NonFiniteError("the loss is nan")
        return {"loss": 1.0}

    def step():
        groups = [group_of(n, mixed(n)) for n in range(3)]
        return update_if_enough_groups(loop.setup, loop.state, loop.recorder, loop.phases(update), groups)

    assert [step() for _ in range(5)] == [None, None, {"loss": 1.0}, None, None]
    with pytest.raises(RunError, match=r"rl\.optimizer\.learning_rate"):
        step()


def test_a_refused_update_leaves_policy_and_checkpoint_as_they_were(tmp_path):
    def refuse(groups):
        raise NonFiniteError("the loss is nan")

    with session_of(tmp_path, rl={"steps_per_round": 5}) as session:
        save(session)
        before = weights(session)
        with pytest.raises(RunError):
            train_round(session, update=refuse)
        path, refused = newest_whole(session.run.folder / "checkpoints")
        assert session.state.policy_version == 0
        assert all(torch.equal(a, b) for a, b in zip(before, weights(session), strict=True))
        assert [r["metrics"]["update/skipped"] for r in rows(session)] == [1.0, 1.0]
    assert path is not None
    assert not refused


SCHEDULES = [
    ({"schedule": "frozen"}, [1, 1, 1, 1, 1, 1]),
    ({"schedule": "every_round"}, [1, 1, 1, 2, 2, 2]),
    ({"schedule": "every_n_steps", "every": 2}, [1, 1, 2, 2, 3, 3]),
    ({"schedule": "ema", "alpha": 0.5}, [1, 2, 3, 4, 5, 6]),
    ({"schedule": "ema", "alpha": 0.5, "every": 2}, [1, 1, 2, 2, 3, 3]),
]


@pytest.mark.parametrize(("reference", "versions"), SCHEDULES, ids=str)
def test_the_reference_moves_when_its_schedule_says(reference, versions):
    loop = loop_of(rl={"reference": reference})
    seen = []
    for number in (1, 2):
        loop.state.step = 0
        begin_round(loop.session, Item("rl", "rl", f"round {number}", number, 3))
        for _ in range(3):
            seen.append(loop.state.reference_version)
            loop.state.step, loop.state.rl_step = loop.state.step + 1, loop.state.rl_step + 1
            move_reference(loop.backend, loop.setup, loop.state)
    assert seen == versions
    assert len(loop.backend.moves) == loop.state.reference_version
    assert set(loop.backend.moves[1:]) <= {reference.get("alpha", 1.0)}


@pytest.mark.run
def test_right_after_it_moved_the_reference_is_the_policy(tmp_path):
    with session_of(tmp_path, rl={"reference": {"schedule": "every_n_steps", "every": 2}}) as session:
        for number in (1, 2):
            train_round(session, round_of(session, number))
            session.state.step = 0
        metrics = [r["metrics"] for r in rows(session)]
    assert [m["reference/version"] for m in metrics] == [1, 1, 2, 2, 3, 3]
    for before, after in pairwise(metrics):
        moved = after["reference/version"] > before["reference/version"]
        assert (after["kl/k3"] < 1e-9) == moved


def test_no_reference_is_held_where_the_recipe_asks_for_none(tmp_path):
    algorithm = {"name": "dapo", "kl_coef": 0, "allow": []}
    with session_of(tmp_path, rl={"algorithm": algorithm, "reference": {"schedule": "none"}}) as session:
        train_round(session)
        metrics = [r["metrics"] for r in rows(session)]
        assert session.workers.backend.reference is None
    assert not any(m["update/skipped"] for m in metrics)
    assert all("kl/k3" not in m and m["reference/version"] == 0.0 for m in metrics)
