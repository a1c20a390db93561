"""The loop with scripted answers: full, short and empty batches, refused updates, moving references, lost graders."""

from __future__ import annotations

import errno
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.errors import NonFiniteError, RunError
from pipeline.loop.steps import rl_steps
from pipeline.run.saving import save
from pipeline.train import checkpoint
from pipeline.types import Attempt, Verdict
from tests.stages.sessions import lines, round_of, rows, session_of, train_round, weights


def test_a_batch_is_filled_and_the_surplus_is_trained_on_next(tmp_path: Path) -> None:
    with session_of(tmp_path) as session:
        session.state.stage.acceptance = 0.4  # oversamples
        train_round(session)
        metrics = [r["metrics"] for r in rows(session)]
    assert [m["groups/trained"] for m in metrics] == [3.0, 3.0, 3.0]
    assert metrics[0]["groups/carried_out"] > 0
    for before, after in itertools.pairwise(metrics):
        assert after["groups/carried_in"] == before["groups/carried_out"]
    for m in metrics:
        assert m["groups/trained"] + m["groups/carried_out"] == m["groups/kept"] + m["groups/carried_in"]
    assert metrics[1]["rows/off_policy"] == 6 * min(3, metrics[1]["groups/carried_in"])
    assert metrics[-1]["policy/version"] == 3.0


@pytest.mark.parametrize("right", ["all", "none"])
def test_a_batch_that_no_group_survives_is_skipped_and_said(tmp_path: Path, right: str) -> None:
    with session_of(tmp_path, right) as session:
        before = weights(session)
        train_round(session)
        metrics = [r["metrics"] for r in rows(session)]
        said = lines(session)
        assert all(torch.equal(a, b) for a, b in zip(before, weights(session), strict=True))
    assert [m["update/skipped"] for m in metrics] == [1.0, 1.0, 1.0]
    reason = "groups/all_right" if right == "all" else "groups/all_wrong"
    assert all(m[reason] == m["groups/sampled"] > 0 for m in metrics)
    assert any("0 of 3 groups teach something; no update" in line for line in said)


def test_refills_are_bounded_and_a_short_batch_trains(tmp_path: Path) -> None:
    with session_of(tmp_path, rl={"select": {"max_refills": 0}, "prompts_per_step": 8, "group_size": 2}) as session:
        train_round(session)
        metrics = [r["metrics"] for r in rows(session)]
    assert all(m["groups/sampled"] <= 4 * 8 for m in metrics)
    short = [m for m in metrics if m["groups/trained"] < 8]
    assert short, "two answers a prompt must leave some batch short"
    assert all(m["update/skipped"] == (m["groups/trained"] == 0) for m in short)


def test_a_short_batch_is_skipped_where_the_recipe_says_so(tmp_path: Path) -> None:
    changes = {"select": {"max_refills": 0, "fallback": "skip", "carry_over": False}, "prompts_per_step": 8}
    with session_of(tmp_path, rl={**changes, "group_size": 2}) as session:
        train_round(session)
        for m in (r["metrics"] for r in rows(session)):
            assert m["update/skipped"] == (m["groups/trained"] < 8)


def test_fewer_groups_than_the_least_skip_the_update(tmp_path: Path) -> None:
    select = {"max_refills": 0, "carry_over": False, "min_groups": 5}
    with session_of(tmp_path, rl={"select": select, "prompts_per_step": 8, "group_size": 2}) as session:
        train_round(session)
        metrics = [r["metrics"] for r in rows(session)]
    assert any(0 < m["groups/trained"] < 5 for m in metrics)
    assert all(m["update/skipped"] == (m["groups/trained"] < 5) for m in metrics)


def test_failed_graders_leave_their_groups_and_raise_an_alarm(tmp_path: Path) -> None:
    class Flaky:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def score(self, attempts: list[Attempt]) -> list[Verdict]:
            verdicts = self.inner.score(attempts)
            return [Verdict("verifier_error", reason="lost") if i % 5 == 0 else v for i, v in enumerate(verdicts)]

    heard: list[tuple[str, dict[str, Any]]] = []
    with session_of(tmp_path, scoring={"retries": 0}) as session:
        session.workers.graders.scorer.bound = {k: Flaky(v) for k, v in session.workers.graders.scorer.bound.items()}
        session.recorder.listener = lambda name, fields: heard.append((name, fields))
        train_round(session)
        metrics = [r["metrics"] for r in rows(session) if r["kind"] == "step"]
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
    assert all(m["rows"] < 6 * m["groups/trained"] for m in metrics if m["groups/trained"])


def test_refused_updates_end_the_run_with_a_good_checkpoint(tmp_path: Path) -> None:
    def refuse(groups: Any) -> Any:
        raise NonFiniteError("the loss is nan")

    with session_of(tmp_path, rl={"steps_per_round": 5, "max_bad_steps": 3}) as session:
        save(session)
        with pytest.raises(RunError, match=r"3 updates in a row were refused.*learning_rate"):
            train_round(session, update=refuse)
        path, refused = checkpoint.newest(session.run.folder / "checkpoints")
    assert path is not None
    assert not refused


def test_one_refused_update_is_passed_over(tmp_path: Path) -> None:
    calls = []

    def refuse_once(groups: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise NonFiniteError("the loss is nan")
        return update(groups)

    with session_of(tmp_path) as session:
        update = rl_steps(session).update
        train_round(session, update=refuse_once)
        assert [r["metrics"]["update/skipped"] for r in rows(session)] == [0.0, 1.0, 0.0]
        assert session.state.policy_version == 2
        assert session.state.stage.num_bad_updates == 0


def test_a_full_disk_ends_the_run_and_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with session_of(tmp_path) as session:
        save(session)

        def full(*_: Any, **__: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(torch, "save", full)
        with pytest.raises(RunError, match="the disk is full; free space and start the same command again"):
            save(session)
        monkeypatch.undo()
        path, refused = checkpoint.newest(session.run.folder / "checkpoints")
        assert path is not None
        assert path.name == "00000000"
        assert not refused
        save(session)
        assert checkpoint.newest(session.run.folder / "checkpoints")[0] == path.parent / "00000001"


REFERENCES: list[tuple[dict[str, Any], list[float]]] = [
    ({"schedule": "frozen"}, [1, 1, 1, 1, 1, 1]),
    ({"schedule": "every_round"}, [1, 1, 1, 2, 2, 2]),
    ({"schedule": "every_n_steps", "every": 2}, [1, 1, 2, 2, 3, 3]),
    ({"schedule": "ema", "alpha": 0.5}, [1, 2, 3, 4, 5, 6]),
    ({"schedule": "on_kl", "kl": 1e-12}, [1, 1, 2, 2, 3, 3]),
    ({"schedule": "on_plateau", "patience": 1}, None),  # type: ignore[list-item]
]


@pytest.mark.parametrize(("reference", "versions"), REFERENCES, ids=lambda x: str(x))
def test_the_reference_moves_when_its_schedule_says(
    tmp_path: Path, reference: dict[str, Any], versions: list[float] | None
) -> None:
    with session_of(tmp_path, rl={"reference": reference}) as session:
        for number in (1, 2):
            train_round(session, round_of(session, number))
            session.state.step = 0
        metrics = [r["metrics"] for r in rows(session)]
        found = [m["reference/version"] for m in metrics]
    if versions is not None:
        assert found == versions
    else:  # moves exactly after steps whose reward was no better than the best since it last moved
        best, expected, version = None, [], 1
        for m in metrics:
            expected.append(float(version))
            if best is None or m["reward/mean"] > best:
                best = m["reward/mean"]
            else:
                version, best = version + 1, None
        assert found == expected
        assert version > 1
    moved = [i + 1 for i, (a, b) in enumerate(itertools.pairwise(found)) if b > a]
    for i in moved:
        if reference["schedule"] != "ema":
            assert metrics[i]["kl/k3"] < 1e-9, "right after it moved the reference is the policy"


def test_no_reference_is_held_where_the_recipe_asks_for_none(tmp_path: Path) -> None:
    algorithm = {"name": "dapo", "kl_coef": 0, "kl_target": None, "kl_horizon": None, "allow": []}
    changes = {"algorithm": algorithm, "reference": {"schedule": "none"}}
    with session_of(tmp_path, rl=changes) as session:
        train_round(session)
        metrics = [r["metrics"] for r in rows(session)]
        assert session.workers.backend.reference is None  # type: ignore[attr-defined]
    assert not any(m["update/skipped"] for m in metrics)
    assert all("kl/k3" not in m and m["reference/version"] == 0.0 for m in metrics)
