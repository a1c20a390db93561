"""Kept sampling sets and kept experts through the loop: recipes, metrics, carried groups, checkpoints, refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.stages.recorded import CUT, EXPERTS, V32, run
from tests.stages.sessions import run_all
from tests.stages.tiny import FEW_SHOWN, tiny
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.files import read_jsonl
from verizero.pipeline.report.progress import Silent
from verizero.pipeline.run.opening import open_run
from verizero.pipeline.run.stage_entry import enter_stage
from verizero.pipeline.run.state import RunState
from verizero.pipeline.whole_run import items_by_stage, run_items


@pytest.mark.integration
def test_a_cut_that_is_kept_leaves_no_mismatch_and_one_that_is_not_does() -> None:
    kept, calls = run(V32, *CUT)
    lost, _ = run("rl.algorithm={name: deepseek_v32, keep_sampling: false, allow: [cut_sampling]}", *CUT)
    assert all(abs(m["mismatch/k3"]) < 1e-9 for m in kept)
    assert all(m["mismatch/k3"] > 1e-5 for m in lost)
    for m in kept:
        assert 1 <= m["sampling/kept_mean"] <= 12
        assert m["sampling/bounded"] == m["sampling/uncut"] == 0.0
    assert all("sampling/kept_mean" not in m for m in lost)
    for _, rollouts in calls["generate"]:
        for r in rollouts:
            assert r.kept is not None
            assert len(r.kept.sizes) == len(r.response_ids)
            assert max(r.kept.sizes) <= 12


@pytest.mark.integration
def test_a_recorded_set_is_bounded_and_how_often_is_said() -> None:
    steps, calls = run(V32, "rollout.top_p=0.99", "rollout.max_kept=2")
    assert all(max(r.kept.sizes) <= 2 for _, rollouts in calls["generate"] for r in rollouts)
    assert all(m["sampling/bounded"] > 0.05 for m in steps)
    assert all(abs(m["mismatch/k3"]) < 1e-9 for m in steps)


@pytest.mark.integration
def test_without_a_cut_nothing_is_recorded() -> None:
    steps, calls = run(V32)
    assert all(r.kept is None and r.routing is None for _, rollouts in calls["generate"] for r in rollouts)
    assert all("sampling/kept_mean" not in m and "routing/changed" not in m for m in steps)


@pytest.mark.integration
def test_experts_are_replayed_through_the_loop() -> None:
    steps, calls = run(V32, *EXPERTS, *CUT, "rl.algorithm.num_minibatches=3", "rl.optimizer.learning_rate=0.02")
    plain, _ = run("rl.algorithm={name: deepseek_v32, keep_routing: false}", *EXPERTS, *CUT)
    for _, rollouts in calls["generate"]:
        for r in rollouts:
            assert (r.routing.layers, r.routing.top_k) == (2, 2)
            assert len(r.routing.experts) == 2 * 4 * (len(r.prompt_ids) + len(r.response_ids) - 1)
    # the first of three updates on a batch changes no choice, the others, of weights that moved, some
    assert any(m["routing/changed"] > 0 for m in steps)
    assert all("routing/changed" not in m for m in plain)


def carrying(folder: Path, *overrides: str) -> RunState:
    """The state after two steps of one group each, the first of which drew several: the rest is carried over."""
    few = ["rl.rounds=1", "rl.steps_per_round=2", "rl.prompts_per_step=1", "rl.select.keep=all", "sft.steps=20"]
    with open_run(tiny(overrides=[*few, *overrides]), folder, folder, "auto", Silent()) as session:
        for stage, items in items_by_stage(session.run, session.state):
            if stage == "rl":
                own = (session.run, session.workers, session.state, session.recorder)
                session.setup = enter_stage(*own, stage)
                session.state.stage.acceptance = 0.25
            run_items(session, items)
        return session.state


@pytest.mark.integration
def test_carried_groups_keep_their_records_in_the_checkpoint_and_sizes_go_to_rollouts(tmp_path: Path) -> None:
    state = carrying(tmp_path, V32, *EXPERTS, *CUT)
    carried = [m.rollout for g in state.stage.carried for m in g.members]
    assert carried
    assert all(r.kept is not None and r.routing is not None for r in carried)
    newest = max((tmp_path / "checkpoints").iterdir())
    saved = RunState.from_json(json.loads((newest / "state.json").read_text()))
    assert [g.members for g in saved.stage.carried] == [
        tuple(without_seconds(m) for m in g.members) for g in state.stage.carried
    ]
    rows = read_jsonl(tmp_path / "rollouts.jsonl")
    sampled = [r for r in rows if r["stage"] == "rl"]
    assert all(len(r["kept_sizes"]) == r["length"] for r in sampled)
    assert all("kept_sizes" not in r for r in rows if r["stage"] != "rl")


def without_seconds(member: Any) -> Any:
    """How long a grader took is not part of a state."""
    return replace(member, verdict=replace(member.verdict, seconds=0.0))


@pytest.mark.integration
def test_the_demo_of_experts_trains(tmp_path: Path) -> None:
    """Two steps of the recipe on a smaller job: experts and sets are recorded, replayed and told."""
    recipe = Path(__file__).resolve().parents[2] / "configs" / "demo_moe.yaml"
    small = [
        "sft.steps=4",
        "sft.batch_size=16",
        "rl.rounds=1",
        "rl.steps_per_round=2",
        "rl.prompts_per_step=2",
        "rl.group_size=4",
    ]
    small += ["evaluation.before_training=false", "evaluation.limit=1", "train.device=cpu", "report.trackers=[]"]
    small += ["rl.select.keep=all", "train.threads=1", f"data.train={FEW_SHOWN}"]
    with open_run(load_recipe(recipe, small), recipe.parent, tmp_path, "auto", Silent()) as session:
        run_all(session)
    rows = read_jsonl(tmp_path / "metrics.jsonl")
    steps = [r["metrics"] for r in rows if r["stage"] == "rl" and r["kind"] == "step"]
    assert len(steps) == 2
    for m in steps:
        assert m["routing/changed"] < 0.02
        assert m["sampling/kept_mean"] > 1
        assert abs(m["mismatch/k3"]) < 1e-9
