"""Off-policy by k updates: which policy sampled what, to which log-probs it is compared, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.stages.recorded import GRPO, run
from tests.stages.sessions import run_all
from tests.stages.tiny import tiny
from verizero.pipeline.errors import CheckpointError
from verizero.pipeline.report.progress import Silent
from verizero.pipeline.run.opening import open_run
from verizero.pipeline.run.rollouts import WEIGHTS_FILE
from verizero.pipeline.stages.rl import rl_phases
from verizero.pipeline.whole_run import items_by_stage, run_items

pytestmark = pytest.mark.integration  # whole runs


@pytest.mark.parametrize("every", [1, 2, 3])
def test_the_engine_takes_weights_every_k_updates(every: int) -> None:
    steps, calls = run(GRPO, "rl.steps_per_round=6", f"rollout.publish_every={every}")
    first = steps[0]["rollout/version"]
    assert [m["rollout/version"] - first for m in steps] == [i - i % every for i in range(6)]
    assert [m["policy/version"] - first for m in steps] == [1, 2, 3, 4, 5, 6]
    assert len(calls["publish"]) == 6 // every
    for i, m in enumerate(steps):
        age = i % every
        assert m.get("rows/off_policy", 0.0) == (18.0 if age else 0.0)
        # the trainer has moved away from the policy that sampled a stale response, to which its ratio is
        assert m["mismatch/stale"] == (1.0 if age else 0.0)
        assert m.get("mismatch/stale_abs", 0.0) > 1e-4 or age == 0
        assert ("mismatch/abs" in m) == (age == 0)
        assert (m["policy_kl/k3"] > 1e-9) == (age > 0)


def test_the_first_responses_are_of_the_policy_that_the_stage_before_made() -> None:
    """Without an evaluation between them, which would have handed the weights over."""
    with_evaluation, first = run(GRPO)
    without, second = run(GRPO, "data.evaluation=[]")
    assert first["generate"][0][1] == second["generate"][0][1]
    assert [m["rollout/version"] for m in without] == [m["rollout/version"] for m in with_evaluation]


def test_an_old_engine_comes_back_old(tmp_path: Path) -> None:
    """A session that is opened again samples what the closed one would have; the policy is untouched by it."""
    config = tiny(overrides=[GRPO, "rollout.publish_every=4", "rl.rounds=1", "rl.select.keep=all", "sft.steps=20"])
    with open_run(config, tmp_path, tmp_path, "auto", Silent()) as session:
        for _, items in items_by_stage(session.run, session.state):
            run_items(session, [i for i in items if i.kind != "evaluate" or i.stage != "rl"])
        assert session.state.rl_step == 3
        prompts = session.workers.sampler.prompts[:2]
        wanted = rl_phases(session).generate(prompts, 0).rollouts
        weights = {k: v.clone() for k, v in session.workers.backend.model.state_dict().items()}
        old = session.workers.rollouts.engine.version
        assert old == session.state.policy_version - 3
    with open_run(config, tmp_path, tmp_path, "must", Silent()) as session:
        assert session.workers.rollouts.engine.version == old
        assert rl_phases(session).generate(prompts, 0).rollouts == wanted
        assert all(torch.equal(v, weights[k]) for k, v in session.workers.backend.model.state_dict().items())
        session.workers.rollouts.engine.publish(session.state.policy_version)
        assert [r.logprobs for r in rl_phases(session).generate(prompts, 0).rollouts] != [r.logprobs for r in wanted]
        broken = tmp_path / "broken"
        broken.mkdir()
        torch.save({"version": 0, "weights": {"other": torch.zeros(1)}}, broken / WEIGHTS_FILE)
        with pytest.raises(CheckpointError, match="does not fit the policy"):
            session.workers.rollouts.publish_after_start(session.workers.backend, 0, broken)


def test_an_engine_as_new_as_the_policy_leaves_no_file(tmp_path: Path) -> None:
    config = tiny(overrides=[GRPO, "rl.rounds=1", "rl.steps_per_round=1", "sft.steps=5"])
    with open_run(config, tmp_path, tmp_path, "auto", Silent()) as session:
        run_all(session)
    assert not list((tmp_path / "checkpoints").rglob(WEIGHTS_FILE))
    assert json.loads((max((tmp_path / "checkpoints").iterdir()) / "state.json").read_text())["rl_step"] == 1


CARRIES = ("rl.select.keep=informative", "rl.prompts_per_step=2", "rl.select.max_refills=6", "sft.steps=120")


def test_groups_carried_over_are_off_policy_in_the_next_step() -> None:
    steps, _ = run("rl.algorithm={name: grpo, kl_coef: 0}", "rl.steps_per_round=8", *CARRIES)
    carried = [m for m in steps if m["groups/carried_in"] > 0 and not m["update/skipped"]]
    assert carried, "no group was carried over: the recipe no longer shows it"
    for m in carried:
        assert m["rows/off_policy"] == 6 * min(2, m["groups/carried_in"])
        # their ratio is against what the engine said when it sampled them, so it is not 1 at the first update
        assert m["policy_kl/k3"] > 0
    fresh = [m for m in steps if m["groups/carried_in"] == 0 and not m["update/skipped"]]
    assert all("rows/off_policy" not in m and abs(m["policy_kl/k3"]) < 1e-9 for m in fresh)
