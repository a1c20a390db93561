"""`verizero train` as a person runs it: a flow on the embedded server, killed, continued, and its history read."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from tests.flows.served import new_database
from tests.processes import others, until
from tests.stages.kill_driver import fingerprint
from tests.stages.tiny import tiny
from tests.warm import MARK, warm
from verizero.pipeline.cli import main
from verizero.pipeline.config.load import dump

pytestmark = pytest.mark.run
FEW = {
    "sft": {"steps": 5},
    "rl": {"rounds": 1, "steps_per_round": 3, "select": {"keep": "all"}, "algorithm": {"entropy_coef": 0.05}},
}
"""Two checkpoints of SFT, and a bonus that moves the policy where no answer is right."""


def words(folder, *extra):
    recipe = folder / "tiny.yaml"
    recipe.write_text(dump(tiny(FEW)))
    return ["train", str(recipe), "--set", f"output={folder / 'runs'}", *extra]


def command(folder, *extra):
    return [sys.executable, "-m", "verizero.pipeline.cli", *words(folder, *extra)]


def environment(folder):
    plain = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    return {**plain, MARK: str(folder)}


def signalled(folder, checkpoint, number, *extra):
    """Status and log of the command that gets the signal once the checkpoint is there.

    It is a fork of a process that has torch, as is its server.
    """
    return warm().call(send_signal, folder, command(folder, *extra), checkpoint, number)


def send_signal(folder, arguments, checkpoint, number):
    log, own = folder / "log", environment(folder)
    with log.open("w") as out:
        process = subprocess.Popen(arguments, stdout=out, stderr=out, env=own, start_new_session=True)
        while process.poll() is None and not (folder / "runs" / "tiny" / "checkpoints" / checkpoint).exists():
            time.sleep(0.02)
        process.send_signal(number)
        return process.wait(60), log.read_text()[-3000:]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The runs of one command never killed and without Prefect, and of one with Prefect that was killed midway."""
    plain, killed = tmp_path_factory.mktemp("plain"), tmp_path_factory.mktemp("killed")
    assert main(words(plain, "--no-prefect")) == 0
    (killed / "runs").mkdir()
    new_database(killed / "runs" / ".prefect")
    status, log = signalled(killed, "00000003", signal.SIGKILL)
    assert status == -signal.SIGKILL, log
    assert not (killed / "runs" / "tiny" / "summary.json").exists(), "it was over before it could be killed"
    started = {"env": environment(killed), "capture_output": True, "text": True, "timeout": 400, "check": False}
    again = warm().call(subprocess.run, command(killed), **started)
    assert again.returncode == 0, again.stderr[-3000:]
    assert "from checkpoint" in again.stderr
    return plain, killed


def test_with_prefect_and_killed_gives_the_bytes_of_a_plain_run(folders):
    plain, killed = folders
    assert fingerprint(killed / "runs" / "tiny") == fingerprint(plain / "runs" / "tiny")


def test_each_stage_is_a_subflow_and_each_phase_a_named_task(folders):
    with sqlite3.connect(folders[1] / "runs" / ".prefect" / "prefect.db") as base:
        flows = dict(base.execute("select name, state_type from flow_run where state_type = 'COMPLETED'").fetchall())
        tasks = {name for (name,) in base.execute("select name from task_run").fetchall()}
        artifacts = base.execute("select data from artifact where key = 'report'").fetchall()
        tagged = dict(base.execute("select name, tags from flow_run").fetchall())
        (rounds,) = base.execute("select data from artifact where key = 'tiny-rounds' order by created desc limit 1")
    assert {"tiny", "tiny rl"} <= set(flows)
    assert all({"tiny", "qwen2", "grpo"} <= set(json.loads(tagged[name])) for name in ("tiny", "tiny rl"))
    assert "data:image/svg+xml;base64," in rounds[0]
    last = {f"round 1 step 3 {phase}" for phase in ("generate", "verify", "select", "update", "publish")}
    assert last <= tasks
    assert {"write the report", "evaluate after round 1 evaluate"} <= tasks
    assert len(artifacts) == 1
    assert "pass@1" in artifacts[0][0]


def test_what_tasks_take_beyond_their_phases_is_counted(folders):
    """In every RL step, within its total; a run without Prefect has no such line."""
    plain, killed = (
        [json.loads(line) for line in (folder / "runs" / "tiny" / "metrics.jsonl").read_text().splitlines()]
        for folder in folders
    )
    assert not any("prefect" in row["time"] for row in plain)
    for t in (row["time"] for row in killed if row["kind"] == "step" and row["stage"] == "rl"):
        assert t["prefect"] > 0
        assert sum(v for k, v in t.items() if k not in ("total", "graders")) <= t["total"] + 0.001


def test_no_process_is_left(folders):
    text = str(folders[1])
    until(lambda: not [p for p, *rest in others() if text in "".join(rest)], "the end of all processes")


def test_ctrl_c_says_from_which_step_the_run_continues(tmp_path):
    status, log = signalled(tmp_path, "00000003", signal.SIGINT, "--no-prefect")
    assert status == 130, log
    assert re.search(
        r"stopped by Ctrl-C or a signal; .* continues with .*, from checkpoint 0000000\d, and does \d", log
    )
