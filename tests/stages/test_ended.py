"""Ends of runs, for each reason: run.json, summary.json, run.log and `verizero diagnose`; and runs without graders."""

import errno
import json
import os
import signal
import sys
from contextlib import suppress

import pytest
import yaml

from tests.far import FarProgram
from tests.processes import until
from tests.stages.sessions import Heard
from tests.stages.start import ONLY_RL, start
from tests.stages.test_stale import SHORT, rows
from tests.stages.tiny import TREE, tiny
from tests.warm import TRAINING
from verizero.pipeline.cli import main
from verizero.pipeline.config.load import dump
from verizero.pipeline.config.yaml_reader import merge
from verizero.pipeline.errors import ResumeRefused, VerizeroError
from verizero.pipeline.host.disk import locked
from verizero.pipeline.report.ended import Ended, end_of, ended_by
from verizero.pipeline.whole_run import train

pytestmark = pytest.mark.usefixtures("pageless")
ROUND = ["rl.rounds=1", "rl.steps_per_round=2", "rl.select.keep=all"]
JUDGE = """
from verizero.verifiers.base import verifier

@verifier
def judge(attempt):
    {}
"""
DOWN, ODD = "raise ConnectionError('the judge is down')", "return len(attempt.response) % 2"
BAD = {"verifier": {"path": "judge.py:judge"}, "file": "rows.jsonl"}


def end(folder, *overrides, changes=None):
    """Run in `folder`/run until it ends; return `ended` of run.json, which summary.json has too, and the messages."""
    heard, run = Heard(), folder / "run"
    with suppress(VerizeroError, OSError):
        train(tiny(changes, [start(), *ONLY_RL, *ROUND, *overrides]), folder, run, "auto", heard)
    ended = json.loads((run / "run.json").read_text())["ended"]
    last = (run / "run.log").read_text().splitlines()[-1]
    assert str(Ended(**ended)).split("\n")[0] in last
    if (run / "summary.json").exists():
        assert json.loads((run / "summary.json").read_text())["ended"] == ended
    return ended, heard.lines


def rewrite_judge(folder, body):
    """Write the judge again, and make the next try import it as a new process would."""
    (folder / "judge.py").write_text(JUDGE.format(body))
    for name in [name for name in sys.modules if name.startswith("verizero_plugin_judge_")]:
        del sys.modules[name]


@pytest.mark.run
def test_all_stages_are_complete_and_a_try_that_must_not_continue_says_nothing_of_the_run(tmp_path):
    done = {"reason": "done", "where": "", "message": "every stage is complete"}
    assert end(tmp_path)[0] == done
    with pytest.raises(ResumeRefused, match="already holds a run"):
        train(tiny({}, [start(), *ONLY_RL, *ROUND]), tmp_path, tmp_path / "run", "never", Heard())
    assert json.loads((tmp_path / "run" / "run.json").read_text())["ended"] == done


@pytest.mark.run
def test_the_budget_of_tokens_is_spent(tmp_path):
    ended, said = end(tmp_path, "rl.rounds=3", f"rl.max_tokens={3 * 18 * 30}")
    assert ended["reason"] == "tokens_spent"
    assert ended["message"] == "rl made 3 of 6 steps: its 1,620 tokens (max_tokens) are spent"
    assert "round 3: no step, as the budget of 1,620 tokens (max_tokens) has no room for another step" in said
    assert any(line.startswith("round 2 ends after 1 of 2 steps: the budget") for line in said)


@pytest.mark.run
def test_graders_fail_and_a_later_try_says_how_it_ended_itself(tmp_path):
    rows(tmp_path)
    rewrite_judge(tmp_path, DOWN)
    data = {"scoring": {"retries": 0}, "data": {"train": [BAD], "evaluation": []}}
    ended, _ = end(tmp_path, changes=data)
    assert (ended["reason"], ended["where"]) == ("graders_failed", "round 1 step 2")
    assert "ConnectionError: the judge is down" in ended["message"]
    rewrite_judge(tmp_path, "return (")
    ended, _ = end(tmp_path, changes=data)
    assert (ended["reason"], ended["where"]) == ("error", "the start"), "of the last try, which did not begin"
    rewrite_judge(tmp_path, ODD)
    assert end(tmp_path, changes=data)[0]["reason"] == "done"


@pytest.mark.run
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_it(number, tmp_path, capsys):
    (tmp_path / "long.yaml").write_text(
        dump(tiny({"name": "run"}, [start(), *ONLY_RL, "rl.steps_per_round=1000", "evaluation.before_training=false"]))
    )
    words = ["verizero.pipeline.cli", "train", "long.yaml", "--no-prefect", "--set", f"output={tmp_path}"]
    child = FarProgram(TRAINING, words, tmp_path / "log", os.environ, tmp_path)
    metrics = tmp_path / "run" / "metrics.jsonl"
    until(lambda: metrics.exists() and '"kind":"step"' in metrics.read_text(), "a step")
    child.send_signal(number)
    child.wait(60)
    ended = json.loads((tmp_path / "run" / "run.json").read_text())["ended"]
    main(["diagnose", str(tmp_path / "run")])
    first, *_ = capsys.readouterr().out.splitlines()
    if number is not signal.SIGKILL:
        assert ended["reason"] == "interrupted", ended
        assert first.startswith("The run ended: interrupted at round 1 step ")
    else:
        assert ended is None
        assert first.startswith("The run has not ended by itself: it was killed")


@pytest.mark.run
@pytest.mark.parametrize(("stage", "label"), [("sft", "sft"), ("rl", "round 1")])
def test_ctrl_c_says_what_is_lost_and_the_first_step_has_a_checkpoint(stage, label, tmp_path):
    """The signal comes within the first step, before its checkpoint, and then within the fourth."""
    steps = {"sft": {"steps": 5}, "rl": {"steps_per_round": 5, "select": {"keep": "all"}}}
    config = tiny({**steps, "checkpoint": {"every_steps": 10}, "stages": [stage]}, ["evaluation.before_training=false"])
    for step, message in (
        (1, "no checkpoint yet: the 1 step so far is lost; the same command begins again"),
        (4, f"the same command continues with {label} step 2, from checkpoint 00000000, and does 3 steps again"),
    ):

        def interrupt(event, last=step):
            if event.step == last:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt) as caught:
            train(config, tmp_path, tmp_path / "run", "auto", Heard(), callbacks=[interrupt])
        assert caught.value.__notes__ == [f"Ctrl-C or a signal; {message}"]
        assert (tmp_path / "run" / "run.log").read_text().endswith(f"{message}\n")


def test_a_run_that_is_under_way(tmp_path):
    with locked(tmp_path):
        assert end_of(tmp_path, {"ended": None}) == "The run is under way."
    assert "killed" in end_of(tmp_path, {"ended": None})


class TerminationSignal(BaseException):
    """As Prefect raises it for a cancelled flow."""


def test_a_cancelled_flow_an_error_that_ctrl_c_led_to_and_a_full_disk_have_their_reasons():
    ended = ended_by(TerminationSignal(), "round 1 step 2")
    assert (ended.reason, ended.where) == ("interrupted", "round 1 step 2")
    assert ended.message.startswith("ended from outside (TerminationSignal)")
    error = RuntimeError("a library's own words")
    error.__cause__ = KeyboardInterrupt()
    assert ended_by(error, "").reason == "interrupted"
    assert ended_by(OSError(errno.ENOSPC, "No space left on device"), "").reason == "disk_full"


@pytest.fixture
def base(tmp_path, monkeypatch):
    """A working folder with rows and a verifier that fails."""
    monkeypatch.chdir(tmp_path)
    rows(tmp_path)
    rewrite_judge(tmp_path, DOWN)
    return tmp_path


def recipe(base, **changes):
    tree = merge(merge(TREE, SHORT), {"name": "down", "scoring": {"retries": 0}})
    tree |= {"stages": ["sft", "rl"], "data": {"train": [BAD], "evaluation": []}, **changes}
    (base / "down.yaml").write_text(yaml.safe_dump(tree))
    return str(base / "down.yaml")


@pytest.mark.run
def test_an_evaluation_ends_with_an_error_in_a_run_and_alone(base, capsys):
    """Also if only one of its domains has no verdict: nothing is known of that one."""
    rows(base / "held")
    text = (base / "held" / "rows.jsonl").read_text()
    (base / "held" / "rows.jsonl").write_text(text.replace('"s', '"e').replace("+2=", "+2 ="))
    held = {**BAD, "file": "held/rows.jsonl", "domain": "judged"}
    sums = {**TREE["data"]["evaluation"][0], "domain": "sums"}
    path = recipe(base, data={"train": [{"file": "rows.jsonl", "verifier": "math"}], "evaluation": [sums, held]})
    assert main(["train", path, "--no-prefect"]) == 1
    assert "evaluate before training, domain 'judged': graders failed on all 36 responses" in capsys.readouterr().err
    assert main(["eval", path]) == 1
    assert "domain 'judged': graders failed on all" in capsys.readouterr().err
    rewrite_judge(base, ODD)
    assert main(["eval", path]) == 0


@pytest.mark.run
def test_sampling_ends_with_an_error(base, capsys):
    path = recipe(base, stages=["sft", {"name": "sample", "kind": "sample"}], sample={"samples": 2})
    assert main(["train", path, "--no-prefect"]) == 1
    assert "graders failed on all 24 responses, first with verifier_error" in capsys.readouterr().err
    assert main(["rate", path, "-n", "2", "--out", "rated.jsonl"]) == 1
    assert "graders failed on all 24 responses" in capsys.readouterr().err
    assert not (base / "rated.jsonl").exists()
