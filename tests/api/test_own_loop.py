"""`vz.open`: a loop of one's own leaves the bytes of `vz.train`, also killed and continued, and may do as it likes."""

import json
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

import verizero as vz
from tests.api.plain_loop import loop
from tests.api.tiny import SMALL
from tests.launch.runs import assert_same_bytes, rows
from tests.stages.kill_driver import fingerprint
from tests.stages.start import start
from tests.stages.test_guard import ROLL_BACK, TOO_FAST
from tests.stages.tiny import TREE, tiny
from tests.warm import ROOT, warm
from verizero.pipeline.config.load import dump
from verizero.pipeline.scoring.select import GROUP_KINDS

REFILLED = ("rl.prompts_per_step=4", "rl.select.keep=informative", "rl.select.max_refills=2")
RECIPES = {
    "generated ahead": ("rl.rounds=1", "rl.steps_per_round=4", "rollout.max_staleness=1"),
    "old weights, and out of tokens": (
        *("rl.rounds=2", "rl.steps_per_round=2", "rl.select.keep=all", "rollout.max_staleness=2"),
        f"rl.max_tokens={3 * 18 * 30}",
    ),
    "rolled back": ("rl.rounds=2", "rl.steps_per_round=3", *TOO_FAST, ROLL_BACK),
    "stages around it": ("stages=[sft, rl, {name: last, kind: sft}]", "rl.rounds=1", "rl.steps_per_round=2"),
}


def recipe_of(folder, *overrides):
    """The path of the tiny recipe with these overrides, of stages of RL alone unless they say more."""
    config = tiny(
        {"output": str(folder / "runs"), "stages": ["rl"], "sft": {"steps": 3, "optimizer": {"learning_rate": 1e-4}}},
        [start(), *overrides],
    )
    path = folder / "recipe.yaml"
    path.write_text(dump(config))
    return str(path)


@pytest.mark.run
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.nightly) if n == "generated ahead" else n for n in RECIPES]
)
def test_the_plain_loop_leaves_the_bytes_of_train(name, tmp_path):
    recipe = recipe_of(tmp_path, *RECIPES[name])
    ours, theirs = loop(recipe, "ours").folder, vz.train(recipe, name="theirs", quiet=True).folder
    assert fingerprint(ours) == fingerprint(theirs)
    assert_same_bytes(ours, theirs)
    assert (
        json.loads((ours / "run.json").read_text())["ended"] == json.loads((theirs / "run.json").read_text())["ended"]
    )
    assert (ours / "report.html").is_file()
    assert vz.TrainedRun(ours).summary["domains"] == vz.TrainedRun(theirs).summary["domains"]


@pytest.mark.run
@pytest.mark.usefixtures("pageless")
def test_a_killed_loop_that_is_run_again_leaves_the_same_bytes(tmp_path):
    """With batches that are refilled, and groups that are carried over."""
    steps = ("rl.rounds=2", "rl.steps_per_round=2", "checkpoint.every_steps=2")
    recipe = recipe_of(tmp_path, "stages=[sft, rl]", *steps, *REFILLED)
    for at in ("update 2", "end_step 2", "update 4"):
        command = [sys.executable, "-m", "tests.api.plain_loop", recipe, "killed", at]
        killed = warm().call(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    ours, theirs = loop(recipe, "killed").folder, vz.train(recipe, name="whole", quiet=True).folder
    assert fingerprint(ours) == fingerprint(theirs)
    assert_same_bytes(ours, theirs)


@contextmanager
def opened(folder, *overrides, **more):
    recipe = recipe_of(folder, "rl.rounds=1", "rl.steps_per_round=3", *overrides)
    with vz.open(recipe, name="own", quiet=True, **more) as s:
        yield s


def steps_of(folder):
    return [row["metrics"] for row in rows(folder) if row["kind"] == "step"]


@pytest.mark.run
@pytest.mark.usefixtures("pageless")
def test_rewards_choice_and_number_of_updates_may_be_ones_own(tmp_path):
    with opened(tmp_path, "data.evaluation=[]") as s:
        before = s._session.state.policy_version
        while not s.done:
            groups = s.verify(s.generate(s.next_prompts(4)))
            assert len(groups) == 4
            groups = s.with_rewards(groups, lambda prompt, member: float(len(member.rollout.response_ids) % 3))
            longest = sorted(groups, key=lambda g: -sum(g.rewards))[:2]
            for group in longest:
                assert s.update([group])["updates"] == 1.0
            s.publish()
            row = s.end_step()
            assert row["groups/sampled"] == sum(row[f"groups/{kind}"] for kind in GROUP_KINDS) == 4
            assert row["groups/trained"] == 2
            assert row["updates"] == 2.0
        assert s._session.state.policy_version == before + 6
    wanted = [m["reward"] == float(m["length"] % 3) for m in s.run.samples(stage="rl")]
    assert wanted
    assert all(wanted)
    assert [m["responses/trained"] for m in steps_of(s.run.folder)] == [12.0] * 3


@pytest.mark.run
@pytest.mark.usefixtures("pageless")
def test_a_refill_of_ones_own_ends_when_the_batch_is_full(tmp_path):
    """With rewards of one's own nothing is sampled unseen, and the recipe's rule still chooses."""
    with opened(tmp_path, *REFILLED, "rl.select.carry_over=false", "data.evaluation=[]") as s:
        while not s.done:
            found = []
            while prompts := s.next_prompts():
                factor = len(found)  # 0 at first: then all rewards are equal, and the rule keeps no group
                groups = s.with_rewards(
                    s.verify(s.generate(prompts)), lambda _, m, factor=factor: float(m.rollout.sample % 2 * factor)
                )
                found.append(len(s.select(groups)))
            assert found == [0, 4]
            assert s.num_missing == 0
            s.update(s.select([]))
            s.publish()
            s.end_step()
    assert [m["groups/sampled"] > m["groups/trained"] == 4 for m in steps_of(s.run.folder)] == [True] * 3


@pytest.mark.run
@pytest.mark.usefixtures("pageless")
def test_calls_out_of_order_name_the_missing_one(tmp_path):
    def refused(missing, call, *given):
        with pytest.raises(vz.VerizeroError) as error:
            call(*given)
        assert f"call {missing}" in str(error.value)

    def try_calls():
        with opened(tmp_path, "data.evaluation=[]") as s:
            refused("next_prompts()", s.generate, [1])
            prompts = s.next_prompts()
            refused("generate(prompts)", s.next_prompts)
            refused("generate(prompts)", s.update, [])
            generated = s.generate(prompts)
            refused("verify(generated)", s.select, [])
            groups = s.verify(generated)
            refused("update(groups)", s.end_step)
            refused("update(groups)", s.publish)
            s.update(s.select(groups))
            refused("publish()", s.end_step)
            refused("publish()", s.next_prompts)
        return s

    with pytest.raises(vz.VerizeroError, match=r"left within round 1 step 1; call publish\(\) first"):
        try_calls()
    assert json.loads((tmp_path / "runs" / "own" / "run.json").read_text())["ended"]["reason"] == "error"
    with opened(tmp_path, "data.evaluation=[]") as s:
        assert s.step == 0, "a step that was not ended is done again"


@pytest.mark.run
@pytest.mark.usefixtures("pageless")
def test_a_loop_that_is_left_early_or_stopped_goes_on_later(tmp_path):
    def one_step(s):
        s.update(s.select(s.verify(s.generate(s.next_prompts()))))
        s.publish()
        s.end_step()

    reasons = []
    with opened(tmp_path) as s:
        one_step(s)
    reasons.append(s.run.summary["ended"]["reason"])
    with opened(tmp_path, callbacks=[lambda event: vz.STOP]) as s:
        assert s.step == 1
        one_step(s)
        assert s.done
    reasons.append(s.run.summary["ended"]["reason"])
    with opened(tmp_path) as s:
        assert s.step == 2
        one_step(s)
        assert s.done
        with pytest.raises(vz.VerizeroError, match="the run is done; loop while"):
            s.next_prompts()
    reasons.append(s.run.summary["ended"]["reason"])
    assert reasons == ["stopped", "stopped", "done"]
    whole = vz.train(str(tmp_path / "recipe.yaml"), name="whole", quiet=True).folder
    assert_same_bytes(s.run.folder, whole)


@pytest.mark.run
def test_a_recipe_without_rl_is_refused(tmp_path):
    tree = {**TREE, "stages": ["sft"], "output": str(tmp_path)}
    (tmp_path / "sft.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(vz.VerizeroError, match=r"the recipe's are sft; use vz\.train"), vz.open(tmp_path / "sft.yaml"):
        pass


@pytest.mark.run
@pytest.mark.usefixtures("folder")
def test_the_loops_of_the_page_run_as_they_are():
    """On a tiny model, in two steps."""
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    plain, own, refilled = re.findall(r"```python\n((?:with vz\.open| +while prompts).*?)```", page, re.DOTALL)
    own = own.replace('"HuggingFaceTB/SmolLM2-135M-Instruct"', '"tiny"')
    own = own.replace("reward=reward)", "reward=reward, name=name, **short)")
    lines = own.splitlines(keepends=True)
    own_rewards = "".join([*lines[:2], refilled, *lines[-2:]])

    def reward(completion, answer):
        return float(len(completion) % 3)

    short = {"steps": 2, "quiet": True, **SMALL, "rl.prompts_per_step": 4}
    names = {"vz": vz, "reward": reward, "mine": lambda prompt, member: float(member.rollout.sample), "short": short}
    for name, program, num_updates in (("own", own, 2.0), ("rewards", own_rewards, 1.0)):
        exec(program, names | {"name": name})
        assert [m["updates"] for m in steps_of(Path("runs", name))] == [num_updates] * 2
    exec(plain.replace('"my.yaml"', '"runs/own/given/recipe.yaml", name="plain", quiet=True'), names)
    assert vz.TrainedRun("runs/plain").summary["ended"]["reason"] == "done"
