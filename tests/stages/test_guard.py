"""The guard finds collapses and no others, goes back and on at half the rate, and survives being killed."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.launch.runs import rows
from tests.stages.broken import killed
from tests.stages.marks import MARKED
from tests.stages.sessions import run_all, train_round
from tests.stages.start import ABLE, ONLY_RL, start
from tests.stages.tiny import tiny
from verizero.pipeline.config.guard import LIMITS
from verizero.pipeline.errors import RunError
from verizero.pipeline.host.disk import read_jsonl
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.report.run_files import read_run
from verizero.pipeline.run import collapse
from verizero.pipeline.run.collapse import measures
from verizero.pipeline.run.opening import open_run, restore_checkpoint, restore_in_flight, set_up_stage
from verizero.pipeline.run.saving import save_final
from verizero.pipeline.whole_run import finish, items_by_stage, items_until, run_items

ONE_LIMIT = ", ".join(f"{name}: {0.92 if name == 'max_unanswered' else 'null'}" for name in LIMITS)


def guard(action: str, *more: str) -> str:
    """Return the override for a guard that looks at answers alone: what else a broken policy does is chance."""
    return f"guard={{{', '.join(['action: ' + action, 'window: 1', f'limits: {{{ONE_LIMIT}}}', *more])}}}"


ROLL_BACK = guard("roll_back")
HOPELESS, CALM = "rl.optimizer.learning_rate=0.05", "rl.optimizer.learning_rate=0.00625"
TOO_FAST = [MARKED, HOPELESS, "rl.reference.schedule=frozen"]
"""The tiny recipe's first update at this rate leaves a model that answers nothing. Whether it does at half the rate
depends on how a processor rounds: so a roll-back goes to an eighth here."""


@pytest.fixture
def eighth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collapse, "RATE_AFTER_ROLL_BACK", 0.125)


def run(folder: Path, overrides: list[str], page: bool = False) -> list[tuple[str, dict[str, Any]]]:
    """The run's events. `page`: it ends with its page, a second's work, and not with its model alone."""
    heard: list[tuple[str, dict[str, Any]]] = []
    with open_run(tiny(overrides=overrides), Path.cwd(), folder, "auto", Progress()) as session:
        session.recorder.listener = lambda name, fields: heard.append((name, fields))
        run_all(session)
        if page:
            finish(session)
        else:
            save_final(session.run, session.workers.backend)
    return heard


@pytest.mark.run
@pytest.mark.usefixtures("eighth")
def test_a_collapse_is_rolled_back_to_a_lower_rate_and_everybody_is_told(tmp_path: Path) -> None:
    """What follows the roll-back is, number by number, what a run with the lower rate does from the beginning."""
    heard = run(tmp_path / "a", [start(), *ONLY_RL, *TOO_FAST, ROLL_BACK], page=True)
    run(tmp_path / "b", [start(), *ONLY_RL, CALM, MARKED, TOO_FAST[2], guard("warn")], page=True)
    (alarm,) = [r for r in rows(tmp_path / "a") if r["kind"] == "alarm"]
    assert (alarm["step"], alarm["to_step"], alarm["roll_backs"]) == (2, 0, 1)
    assert alarm["knob"] == {"rl.optimizer.learning_rate": pytest.approx(0.00625)}
    (event,) = [fields for name, fields in heard if name == "verizero.collapse.suspected"]
    assert event["signs"] == alarm["signs"]
    assert event["where"] == "round 1 step 2"

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
    assert "Rolled back to step 0, with rl.optimizer.learning_rate = 0.00625 from there on" in page
    assert "Alarms" not in (tmp_path / "b" / "report.html").read_text()
    samples = read_jsonl(tmp_path / "a" / "rollouts.jsonl")
    assert {s.get("roll_backs", 0) for s in samples if s["stage"] == "rl"} == {0, 1}


@pytest.mark.run
@pytest.mark.usefixtures("eighth")
def test_a_collapse_that_old_responses_hid_is_rolled_back_to_before_it(tmp_path: Path) -> None:
    """The first update breaks the policy; the second step still trains on responses from before it, which look well."""
    ahead = [start(), *ONLY_RL, MARKED, TOO_FAST[2], "rollout.max_staleness=1", "rl.select.keep=all"]
    heard = run(tmp_path / "a", [*ahead, TOO_FAST[1], ROLL_BACK])
    run(tmp_path / "b", [*ahead, CALM])
    (alarm,) = [r for r in rows(tmp_path / "a") if r["kind"] == "alarm"]
    assert (alarm["step"], alarm["to_step"], alarm["roll_backs"]) == (3, 0, 1)
    assert len([n for n, _ in heard if n == "verizero.collapse.suspected"]) == 1
    model = "model/model.safetensors"
    assert (tmp_path / "a" / model).read_bytes() == (tmp_path / "b" / model).read_bytes()
    assert {r.metrics["staleness/max"] for r in read_run(tmp_path / "a").rl_steps[1:]} == {1.0}


KINDS: list[Any] = [
    [
        "rl.algorithm={name: ppo, critic_learning_rate: 1e-3, num_minibatches: 1}",
        *("rl.reference={schedule: ema, alpha: 0.5}", "rollout.max_staleness=2", "rl.select.keep=all"),
    ],
    pytest.param(["train.lora={rank: 4}", "train.backend=fsdp", "rl.select.keep=all"], marks=pytest.mark.nightly),
]


@pytest.mark.run
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_taken_back_a_run_does_the_same_again(kind: list[str], tmp_path: Path) -> None:
    """To its second step from its fourth: policy, optimiser, reference, critic, engine, sampler and groups are back."""
    overrides = [start(*ABLE), *ONLY_RL, *kind, "checkpoint.keep=30", "data.evaluation=[]"]
    run(tmp_path / "straight", overrides)
    folder = tmp_path / "back"
    with open_run(tiny(overrides=overrides), Path.cwd(), folder, "auto", Progress()) as session:
        *before, (_, rl) = items_by_stage(session.run, session.state)
        for items in (*(some for _, some in before), rl[:1]):
            run_items(session, items)
        train_round(replace(session), replace(rl[1], num_steps=1))
        saved = {p: json.loads((p / "state.json").read_text()) for p in (folder / "checkpoints").glob("0*")}
        (good, state), *_ = [(p, s) for p, s in saved.items() if s["rl_step"] == 2]
        restore_checkpoint(session.run, session.workers, session.state, good)
        session.setup = set_up_stage(session.run, session.workers, session.state)
        assert json.loads(json.dumps(session.state.to_json())) == state
        restore_in_flight(session.workers, session.setup, session.state)
        run_items(session, items_until(session.run, session.state, rl[-1]))
        save_final(session.run, session.workers.backend)
    model = "model/model.safetensors"
    assert (folder / model).read_bytes() == (tmp_path / "straight" / model).read_bytes()
    again, straight = ([r for r in rows(f) if r["kind"] == "step"] for f in (folder, tmp_path / "straight"))
    assert [r["metrics"] for r in again[-4:]] == [r["metrics"] for r in straight[-4:]]
    assert len(again) == len(straight) + 2


@pytest.mark.run
def test_stop_ends_the_run_and_names_the_policy_before_the_collapse(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"guard\.limits\.max_unanswered.*The policy before that is (\S+);") as e:
        run(tmp_path, [start(), *ONLY_RL, *TOO_FAST, guard("stop")])
    named = Path(str(e.value).partition("The policy before that is ")[2].partition(";")[0])
    assert (named / "model.safetensors").is_file()
    assert json.loads((named.parent / "state.json").read_text())["rl_step"] == 0


@pytest.mark.run
def test_a_run_that_collapses_however_often_it_is_rolled_back_ends(tmp_path: Path) -> None:
    again = [guard("roll_back", "max_roll_backs: 1")]
    with pytest.raises(RunError, match="again, after 1 "):
        run(tmp_path, [start(), *ONLY_RL, *TOO_FAST, *again])
    assert [r["action"] for r in rows(tmp_path) if r["kind"] == "alarm"] == ["roll_back", "roll_back"]


@pytest.mark.run
def test_warn_says_each_collapse_once_and_changes_nothing(tmp_path: Path) -> None:
    broken = [start(), *ONLY_RL, *TOO_FAST]
    heard = run(tmp_path / "warned", [*broken, guard("warn")])
    run(tmp_path / "off", [*broken, guard("none")])
    warned = rows(tmp_path / "warned")
    alarms = [r for r in warned if r["kind"] == "alarm"]
    (sign,) = alarms[0]["signs"]
    over = [measures(r["metrics"]).get("unanswered", 0) > sign["limit"] for r in warned if r["kind"] == "step"]
    assert sum(over) > len(alarms), "no two steps that follow each other show the collapse"
    begins = [i for i, (last, now) in enumerate(pairwise([False, *over]), start=1) if now and not last]
    assert [a["step"] for a in alarms] == begins
    assert len([n for n, _ in heard if n == "verizero.collapse.suspected"]) == len(begins)
    steps = [[r["metrics"] for r in found if r["kind"] == "step"] for found in (warned, rows(tmp_path / "off"))]
    assert steps[0] == steps[1]


@pytest.mark.run
def test_killed_around_a_roll_back_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    killed(tmp_path, "around roll-backs", start(), *ONLY_RL, *TOO_FAST, ROLL_BACK)
