"""The guard finds collapses and no others, goes back and on with one number changed, and survives being killed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.guard import GuardConfig
from pipeline.config.run import RunConfig
from pipeline.errors import ConfigError, RunError
from pipeline.loop.rollback import return_to
from pipeline.report.exposition import Reading
from pipeline.report.files import read_run
from pipeline.report.progress import Silent
from pipeline.run.collapse import LIMITS, good_checkpoints, measures, note_checkpoint, observe, with_turned_knobs
from pipeline.run.opening import make_setup, opened, restore_in_flight
from pipeline.run.state import RunState, StageState
from pipeline.whole_run import finish, remaining, run_items, upcoming
from tests.stages.kill_driver import AROUND_ROLL_BACKS
from tests.stages.sessions import run_all, train_round
from tests.stages.tiny import tiny

ROOT = Path(__file__).resolve().parents[2]
HEALTHY = {
    "entropy": 0.4,
    "kl/k3": 0.01,
    "groups/sampled": 20.0,
    "groups/all_wrong": 4.0,
    "groups/equal": 0.0,
    "length/mean": 50.0,
    "truncated": 0.02,
    "verdict/no_answer": 0.05,
    "verdict/timeout": 0.0,
    "clip_fraction/low": 0.01,
    "clip_fraction/high": 0.01,
}
COLLAPSES: list[tuple[dict[str, float], str]] = [
    ({"entropy": 0.03}, "min_entropy"),
    ({"entropy": 2.5}, "max_entropy"),
    ({"length/mean": 9.0}, "min_length"),
    ({"truncated": 0.6}, "max_truncated"),
    ({"kl/k3": 1.5}, "max_kl"),
    ({"clip_fraction/low": 0.4}, "max_clip_fraction"),
    ({"groups/all_wrong": 12.0, "groups/equal": 8.0}, "max_flat"),
    ({"verdict/no_answer": 0.3, "verdict/timeout": 0.1}, "max_unanswered"),
]
ROLL_BACK = "guard={action: roll_back, window: 2, knob: {rl.optimizer.learning_rate: 0.05}}"
ONLINE = {"loss": {"name": "dpo"}, "rounds": 1, "steps_per_round": 2, "prompts_per_step": 3, "group_size": 4}
TOO_FAST = ["rl.optimizer.learning_rate=0.02", "rl.reference.schedule=frozen"]
"""The tiny recipe's first update at this rate leaves a model that answers nothing."""


def noisy(rng: random.Random, row: dict[str, float]) -> dict[str, float]:
    return {k: v * rng.uniform(0.7, 1.3) for k, v in row.items()} | {"groups/sampled": row["groups/sampled"]}


def seen(rows: list[dict[str, float]], config: GuardConfig) -> list[set[str]]:
    """The settings whose limits were passed, after each row; the memory goes through JSON each time, as checkpoints."""
    memory: dict[str, Any] = {}
    out = []
    for row in rows:
        memory = json.loads(json.dumps(memory))
        out.append({s.setting for s in observe(memory, row, config)})
    return out


def test_noise_and_single_wild_steps_are_no_collapse() -> None:
    rng = random.Random(0)
    rows = [noisy(rng, HEALTHY) for _ in range(200)]
    for i in range(20, 200, 20):
        rows[i] |= {"kl/k3": 400.0, "entropy": 9.0, "truncated": 0.9, "verdict/no_answer": 0.9}
    assert seen(rows, GuardConfig()) == [set()] * 200


@pytest.mark.parametrize(("change", "setting"), COLLAPSES, ids=[name for _, name in COLLAPSES])
def test_each_sign_is_seen_once_most_of_the_window_shows_it(change: dict[str, float], setting: str) -> None:
    rng = random.Random(1)
    rows = [noisy(rng, HEALTHY) for _ in range(12)] + [HEALTHY | change for _ in range(5)]
    found = seen(rows, GuardConfig(window=5))
    assert found == [set()] * 14 + [{setting}] * 3
    assert seen(rows, GuardConfig(window=5, **{setting: None})) == [set()] * 17


def test_groups_that_are_all_right_are_no_collapse() -> None:
    solved = HEALTHY | {"groups/all_wrong": 0.0, "groups/all_right": 20.0}
    assert seen([HEALTHY] * 10 + [solved] * 10, GuardConfig()) == [set()] * 20


def test_steps_without_an_update_or_a_group_are_judged_by_what_they_have() -> None:
    bare = {k: v for k, v in HEALTHY.items() if k.startswith(("groups", "verdict", "length", "truncated"))}
    assert "entropy" not in measures(bare)
    assert measures({"groups/sampled": 0.0}) == {}
    flat = bare | {"groups/all_wrong": 20.0}
    assert seen([HEALTHY] * 5 + [flat] * 5, GuardConfig())[-1] == {"max_flat"}
    empty: dict[str, float] = {"groups/sampled": 0.0}
    assert seen([HEALTHY] * 5 + [empty] * 9, GuardConfig()) == [set()] * 14


@pytest.mark.parametrize(("late", "rollout"), [(0, []), (2, ["max_staleness=2"]), (3, ["publish_every=4"])], ids=str)
def test_checkpoints_are_kept_until_no_collapse_would_go_back_to_them(late: int, rollout: list[str]) -> None:
    """Every checkpoint that a later collapse asks for was among those kept at each save in between."""
    config = tiny(overrides=[ROLL_BACK, "guard.window=5", *(f"rollout.{r}" for r in rollout)]).of_stage("rl")
    state = RunState(StageState("rl"))
    on_disk: set[int] = set()
    for step in range(60):
        state.rl_step = step
        good = good_checkpoints(state, config)
        if step >= 5:
            assert set(good[:1]) <= on_disk
            assert good, step
            assert good[0] * 4 <= max(0, step - 6 - late)  # the policy of step k wrote the responses of k + 1 + late
            assert good[0] * 4 > step - 6 - late - 4
        if step % 4 == 0:
            kept = note_checkpoint(state, config)
            on_disk = (on_disk | {state.next_checkpoint}) & set(kept)
            state.next_checkpoint += 1
            assert len(kept) <= 3 + 1 + late // 2
    assert note_checkpoint(RunState(StageState("rl")), tiny().of_stage("rl")) == []


def test_checkpoints_are_kept_in_stages_in_rounds_alone() -> None:
    """A preference stage is to name the policy before a collapse too."""
    online = {"stages": ["sft", "online_preference"], "online_preference": ONLINE, "guard": {"action": "stop"}}
    assert note_checkpoint(RunState(StageState("online_preference")), tiny(online).of_stage("online_preference")) == [0]
    assert note_checkpoint(RunState(StageState("sft")), tiny(online).of_stage("sft")) == []


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ({"rl.optimizer.learning_rate": 0.5}, lambda c: c.rl.optimizer.learning_rate / 1e-3),
        ({"rl.optimizer.max_grad_norm": 0.5}, lambda c: c.rl.optimizer.max_grad_norm),
        ({"rollout.temperature": 0.5}, lambda c: c.rollout.temperature),
        ({"rl.algorithm.clip_high": 0.5}, lambda c: c.rl.algorithm["clip_high"] / 0.2),
    ],
    ids=["learning_rate", "max_grad_norm", "temperature", "clip_high"],
)
def test_the_knob_turns_one_number_and_nothing_else(knob: dict[str, float], value: Any) -> None:
    config = tiny({"guard": {"action": "roll_back", "knob": knob}, "rl": {"algorithm": {"clip_high": 0.2}}})
    stage = config.of_stage("rl")
    for times in (0, 1, 2):
        turned = with_turned_knobs(stage, RunState(StageState(guard={"roll_backs": times})))
        assert value(turned) == pytest.approx(0.5**times)
        flat, plain = dict(leaves(turned)), dict(leaves(stage))
        assert len([k for k in flat if flat[k] != plain[k]]) == (times > 0)


def leaves(config: RunConfig) -> list[tuple[str, Any]]:
    def walk(value: Any, name: str) -> list[tuple[str, Any]]:
        if isinstance(value, dict):
            return [pair for k, v in value.items() for pair in walk(v, f"{name}.{k}")]
        return [(name, value)]

    return walk(config.model_dump(), "")


@pytest.mark.parametrize(
    ("guard", "said"),
    [
        ({"action": "roll_back"}, "guard.knob has 0: give one, e.g. {rl.optimizer.learning_rate: 0.5}"),
        ({"action": "roll_back", "knob": {"a": 0.5, "b": 0.5}}, "guard.knob has 2: give one"),
        ({"action": "warn", "knob": {"rollout.temperature": 0.5}}, "guard.knob is for guard.action=roll_back"),
        ({"action": "roll_back", "knob": {"rollout.temperature": 1.0}}, "give a factor above 0 that is not 1"),
        ({"action": "roll_back", "knob": {"rl.rounds": 0.5}}, "guard.knob cannot turn rl.rounds"),
        ({"action": "roll_back", "knob": {"rl.algorithm.kl_coef": 2}}, "follows kl_target by itself"),
        ({"action": "roll_back", "knob": {"rl.algorithm.entropy_coef": 2}}, "entropy_coef is 0.0 here"),
        ({"action": "roll_back", "knob": {"rl.algorithm.no_such": 2}}, "rl.algorithm.no_such is None here"),
        ({"max_kl": -1}, "guard.max_kl"),
        ({"max_lk": 1}, "did you mean max_kl"),
    ],
    ids=str,
)
def test_a_guard_that_cannot_work_is_refused_while_loading(guard: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tiny({"guard": guard})
    assert said in str(caught.value)


def test_a_roll_back_needs_a_backend_that_can() -> None:
    with pytest.raises(ConfigError, match=r"roll_back cannot go back .*backend='deepspeed'; set guard.action: stop"):
        tiny({"train": {"backend": "deepspeed"}}, [ROLL_BACK])


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def run(folder: Path, overrides: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """The run's events."""
    heard: list[tuple[str, dict[str, Any]]] = []
    with opened(tiny(overrides=overrides), Path.cwd(), folder, "auto", Silent()) as session:
        session.recorder.listener = lambda name, fields: heard.append((name, fields))
        run_all(session)
        finish(session)
    return heard


@pytest.mark.integration
def test_a_collapse_is_rolled_back_with_the_knob_turned_and_everybody_is_told(tmp_path: Path) -> None:
    """What follows the roll-back is, number by number, what a run with the lower rate does from the beginning."""
    heard = run(tmp_path / "a", [*TOO_FAST, ROLL_BACK])
    run(tmp_path / "b", ["rl.optimizer.learning_rate=0.001", TOO_FAST[1]])
    (alarm,) = [r for r in rows(tmp_path / "a") if r["kind"] == "alarm"]
    assert (alarm["step"], alarm["to_step"], alarm["roll_backs"]) == (3, 0, 1)
    assert alarm["knob"] == {"rl.optimizer.learning_rate": pytest.approx(0.001)}
    (event,) = [fields for name, fields in heard if name == "verizero.collapse.suspected"]
    assert event["signs"] == alarm["signs"]
    assert event["where"] == "round 1 step 3"

    mine, theirs = read_run(tmp_path / "a"), read_run(tmp_path / "b")
    spent = {"tokens/generated", "policy/version"}
    for row, other in zip(mine.rl_steps, theirs.rl_steps, strict=True):
        same = {k: v for k, v in row.metrics.items() if k not in spent}
        assert same == {k: v for k, v in other.metrics.items() if k not in spent}
    assert mine.rl_steps[-1].metrics["tokens/generated"] > theirs.rl_steps[-1].metrics["tokens/generated"]
    assert [e.label for e in mine.evaluations] == [e.label for e in theirs.evaluations]
    model = "model/model.safetensors"
    assert (tmp_path / "a" / model).read_bytes() == (tmp_path / "b" / model).read_bytes()

    page = (tmp_path / "a" / "report.html").read_text()
    assert "Rolled back to step 0, with rl.optimizer.learning_rate = 0.001 from there on" in page
    assert "Alarms" not in (tmp_path / "b" / "report.html").read_text()
    reading = Reading(tmp_path / "a" / "metrics.jsonl")
    reading.refresh()
    assert reading.counters["alarms_total"][(("alarm", "collapse"),)] == 1
    samples = [json.loads(line) for line in (tmp_path / "a" / "rollouts.jsonl").read_text().splitlines()]
    assert {s.get("roll_backs", 0) for s in samples if s["stage"] == "rl"} == {0, 1}


@pytest.mark.integration
def test_a_collapse_that_old_responses_hid_is_rolled_back_to_before_it(tmp_path: Path) -> None:
    """The first update breaks the policy; the second step still trains on responses from before it, which look well."""
    ahead = [TOO_FAST[1], "rollout.max_staleness=1", "rl.select.keep=all"]
    others = {setting: "null" for _, setting, _ in LIMITS} | {"max_unanswered": "0.6", "window": "1"}
    heard = run(tmp_path / "a", [TOO_FAST[0], *ahead, ROLL_BACK, *(f"guard.{k}={v}" for k, v in others.items())])
    run(tmp_path / "b", ["rl.optimizer.learning_rate=0.001", *ahead])
    (alarm,) = [r for r in rows(tmp_path / "a") if r["kind"] == "alarm"]
    assert (alarm["step"], alarm["to_step"], alarm["roll_backs"]) == (3, 0, 1)
    assert len([n for n, _ in heard if n == "verizero.collapse.suspected"]) == 1
    model = "model/model.safetensors"
    assert (tmp_path / "a" / model).read_bytes() == (tmp_path / "b" / model).read_bytes()
    assert {r.metrics["staleness/max"] for r in read_run(tmp_path / "a").rl_steps[1:]} == {1.0}


KINDS: list[list[str]] = [
    [],
    ["train.lora={rank: 4}", "rl.select.keep=all", "sft.optimizer.learning_rate=0.05"],
    ["rl.algorithm={name: ppo, critic_learning_rate: 1e-3, num_minibatches: 1}"],
    ["rollout.publish_every=2", "rl.reference.schedule=ema", "rl.reference.alpha=0.5"],
    ["rollout.max_staleness=1"],
    ["rollout.max_staleness=2", "rl.select.keep=all"],
    ["rollout.max_staleness=2", "rollout.in_flight=interrupt", "rollout.interrupt_tokens=4"],
]


@pytest.mark.integration
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_taken_back_a_run_does_the_same_again(kind: list[str], tmp_path: Path) -> None:
    """To its second step from its fourth: policy, optimiser, reference, critic, engine, sampler and groups are back."""
    overrides = [*kind, "checkpoint.keep=30"]
    run(tmp_path / "straight", overrides)
    folder = tmp_path / "back"
    with opened(tiny(overrides=overrides), Path.cwd(), folder, "auto", Silent()) as session:
        (_, first), (_, sft), (_, rl) = remaining(session.run, session.state)
        for items in (first, sft, rl[:2]):
            run_items(session, items)
        train_round(replace(session), replace(rl[2], num_steps=1))
        saved = {p: json.loads((p / "state.json").read_text()) for p in (folder / "checkpoints").glob("0*")}
        (start, state), *_ = [(p, s) for p, s in saved.items() if s["rl_step"] == 2]
        return_to(session, start)
        session.setup = make_setup(session.run, session.workers, session.state)
        assert json.loads(json.dumps(session.state.to_json())) == state
        restore_in_flight(session.workers, session.setup, session.state)
        run_items(session, upcoming(session.run, session.state, rl[-1]))
        finish(session)
    model = "model/model.safetensors"
    assert (folder / model).read_bytes() == (tmp_path / "straight" / model).read_bytes()
    again, straight = ([r for r in rows(f) if r["kind"] == "step"] for f in (folder, tmp_path / "straight"))
    assert [r["metrics"] for r in again[-4:]] == [r["metrics"] for r in straight[-4:]]
    assert len(again) == len(straight) + 2


@pytest.mark.integration
def test_stop_ends_the_run_and_names_the_policy_before_the_collapse(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"RL is collapsing: .*guard\.max_flat.*The policy before that is (\S+);") as e:
        run(tmp_path, [*TOO_FAST, "guard={action: stop, window: 2}"])
    named = Path(str(e.value).partition("The policy before that is ")[2].partition(";")[0])
    assert (named / "model.safetensors").is_file()
    assert json.loads((named.parent / "state.json").read_text())["rl_step"] == 0


@pytest.mark.integration
def test_a_run_that_collapses_however_often_it_is_rolled_back_ends(tmp_path: Path) -> None:
    hopeless = ROLL_BACK.replace("0.05", "0.9").replace("window: 2", "window: 2, max_roll_backs: 1")
    with pytest.raises(RunError, match="collapsing again, after 1 roll-backs"):
        run(tmp_path, [*TOO_FAST, hopeless])
    assert [r["action"] for r in rows(tmp_path) if r["kind"] == "alarm"] == ["roll_back", "roll_back"]


@pytest.mark.integration
def test_warn_says_it_once_and_changes_nothing(tmp_path: Path) -> None:
    heard = run(tmp_path / "warned", [*TOO_FAST, "guard={action: warn, window: 2}"])
    run(tmp_path / "off", [*TOO_FAST, "guard={action: none, window: 2}"])
    warned = rows(tmp_path / "warned")
    assert len([r for r in warned if r["kind"] == "alarm"]) == 1
    assert len([n for n, _ in heard if n == "verizero.collapse.suspected"]) == 1
    steps = [[r["metrics"] for r in found if r["kind"] == "step"] for found in (warned, rows(tmp_path / "off"))]
    assert steps[0] == steps[1]


@pytest.mark.integration
def test_killed_around_a_roll_back_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.stages.kill_driver", str(tmp_path), *TOO_FAST, ROLL_BACK],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["whole_status"] == 0
    assert len(found["killed"]) == len(AROUND_ROLL_BACKS)
    for kills, scenario in found["killed"].items():
        assert set(scenario["deaths"]) == {-signal.SIGKILL}, kills
        assert scenario["last"] == 0, kills
        assert scenario["end"] == found["whole"], kills
