"""`verizero serve` when things end: cancels from the UI, kills of each process, and that runs go on afterwards.

The tests share a server and stand in an order: the runs whose parents are killed first are looked at last, when the
silence of their processes has been noticed.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from flows.process_lifetime import END_WITHIN_S
from flows.serve import FLOWS_GRACE_S, SETTINGS
from flows.server import free_port
from pipeline.config.recipes import asked_for
from pipeline.files import iterate_jsonl
from pipeline.launch import GRACE_S
from pipeline.report.progress import Silent
from pipeline.stages.train import train
from tests.flows.served import PICTURES, Served, alive, commands, family, until
from tests.stages.kill_driver import fingerprint

pytestmark = [pytest.mark.integration, pytest.mark.slow]
FOLDED = {"prefect.phases": "folded"}
LONG = {**FOLDED, "sft.steps": 120, "rl.select.keep": "all", "rl.steps_per_round": 40}
"""A policy that can learn, and steps enough to be cancelled in their midst."""
ENDLESS = {**LONG, "sft.steps": 10, "rl.steps_per_round": 100_000}
CANCELLED_WITHIN_S = 15.0


@pytest.fixture(scope="module")
def whole(served: Served, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the run of LONG leaves where nobody touches it."""
    folder = tmp_path_factory.mktemp("whole")
    request = asked_for("small", own=served.folder / "recipes", run_name="whole", overrides=LONG)
    train(request.config, request.base_dir, folder, "auto", Silent())
    return fingerprint(folder)


@pytest.fixture(scope="module")
def orphaned(served: Served, whole: dict[str, str]) -> str:
    """A run in the midst of training whose `verizero serve` is killed, and is there again."""
    run = in_rl(served, "orphaned", LONG)
    everyone = family(served.process.pid)
    assert len(everyone) >= 4, "serve, the server, the runner, the flow"
    os.kill(served.process.pid, signal.SIGKILL)
    served.process.wait()
    until(lambda: not alive(everyone), "the end of all that serve had started", 60)
    assert not served.processes()
    served.process = served.serve()
    served.wait()
    return run


@pytest.fixture(scope="module")
def silenced(served: Served, orphaned: str) -> str:
    """A run in the midst of training, whose runner is to be killed."""
    return in_rl(served, "silenced", ENDLESS)


def in_rl(served: Served, name: str, overrides: dict[str, Any]) -> str:
    """The id of a run of that name, which has begun with RL."""
    run = served.start("train", recipe="small", run_name=name, overrides=overrides)
    until(lambda: num_steps(served, name) > 0, f"a step of {name}")
    return run


def num_steps(served: Served, name: str) -> int:
    """Lines of RL steps that the run has written so far."""
    path = served.folder / "runs" / name / "metrics.jsonl"
    return sum(row["kind"] == "step" and row["stage"] == "rl" for row in iterate_jsonl(path)) if path.exists() else 0


def went_on(served: Served, run: str) -> bool:
    lines = served.post("/logs/filter", logs={"flow_run_id": {"any_": [run]}})
    return any("going on from checkpoint" in line["message"] for line in lines)


def test_a_killed_serve_leaves_no_process_and_is_started_again(served: Served, orphaned: str) -> None:
    assert served.state(orphaned) == "Running", "nobody has told the server yet"
    assert served.process_of(orphaned) is None


def test_a_killed_server_is_back_and_the_run_goes_on(served: Served, silenced: str) -> None:
    process = served.process_of(silenced)
    (server,) = served.processes("flows.server\0")
    os.kill(server, signal.SIGKILL)
    until(lambda: "the server ended (-9) and is started again" in served.log.read_text(), "the new server", 60)
    until(lambda: served.processes("flows.server\0") not in ([], [server]), "its process", 60)
    done = num_steps(served, "silenced")
    until(lambda: num_steps(served, "silenced") > done + 5, "further steps")
    until(served.answers, "its answer")
    assert served.process_of(silenced) == process
    assert served.state(silenced) == "Running"


def test_a_killed_runner_takes_its_flows_along_and_is_started_again(served: Served, silenced: str) -> None:
    process = served.process_of(silenced)
    assert process is not None
    (runner,) = served.processes("flows.serve\0")
    everyone = family(runner)
    assert process in everyone
    os.kill(runner, signal.SIGKILL)
    until(lambda: not alive(everyone), "the end of the flow and all that it had started", 60)
    until(lambda: "the runner ended (-9) and is started again" in served.log.read_text(), "the new runner")
    assert served.state(silenced) == "Running", "nobody has told the server yet"


def test_a_cancel_in_the_browser_ends_every_process_and_a_retry_gives_the_same_bytes(
    served: Served, browser: Any, whole: dict[str, str]
) -> None:
    run = served.start("train", recipe="small", run_name="cancelled", overrides=LONG)
    browser.goto(f"{served.address}/runs/flow-run/{run}")
    browser.get_by_role("button", name="Cancel").wait_for()
    until(lambda: num_steps(served, "cancelled") > 0, "a step of RL")
    process = served.process_of(run)
    assert process is not None
    everyone = family(process)
    browser.get_by_role("button", name="Cancel").click()
    browser.get_by_role("button", name="Confirm").click()
    begin = time.monotonic()
    until(lambda: not alive(everyone), "the end of every process", 120)
    print(f"{len(everyone)} processes ended {time.monotonic() - begin:.1f} s after the click on Cancel")
    assert served.ended(run)["state"]["name"] == "Cancelled"
    assert not (served.folder / "runs" / "cancelled" / "summary.json").exists()
    browser.screenshot(path=PICTURES / "cancelled.png")
    served.retry(run)
    assert served.ended(run)["state"]["name"] == "Completed"
    until(lambda: went_on(served, run), "the line that says so", 60)
    assert fingerprint(served.folder / "runs" / "cancelled") == whole


def test_what_a_cancel_waits_for_is_less_than_what_is_promised() -> None:
    """Times on a loaded machine are its own: what we allow each part to take must fit."""
    told = float(SETTINGS["PREFECT_RUNNER_POLL_FREQUENCY"])
    assert told + END_WITHIN_S < CANCELLED_WITHIN_S, "the runner hears of it, then the flow has its time"
    assert GRACE_S < END_WITHIN_S, "ranks are ended by the flow, which is there to see it"
    assert END_WITHIN_S < FLOWS_GRACE_S < CANCELLED_WITHIN_S, "serve that is stopped waits for its flows"


def test_a_group_of_ranks_trains_and_a_cancel_leaves_none_of_it(served: Served) -> None:
    two = {"launch.gpus_per_node": 2, "launch.kind": "torchrun", "launch.port": free_port()}
    run = in_rl(served, "two", {**ENDLESS, **two})
    local = served.start("train", recipe="small", run_name="two-local", overrides={**two, "launch.kind": "local"})
    process = served.process_of(run)
    assert process is not None
    everyone = family(process)
    words = commands(everyone)
    assert sum("pipeline.cli train" in w and "torch.distributed.run" not in w for w in words) >= 2, words
    served.post(f"/flow_runs/{run}/set_state", state={"type": "CANCELLING"})
    begin = time.monotonic()
    until(lambda: not alive(everyone), "the end of every rank", 120)
    print(f"{len(everyone)} processes of a group ended {time.monotonic() - begin:.1f} s after the cancel")
    assert served.ended(run)["state"]["name"] == "Cancelled"
    assert served.ended(local)["state"]["name"] == "Completed"
    folder = served.folder / "runs" / "two-local"
    assert "round 1 2/2" in (folder / "logs" / "rank1.log").read_text()
    assert "report" in served.artifacts(local)


def test_a_killed_flow_is_marked_crashed_and_what_it_had_started_is_gone(served: Served) -> None:
    """Of the flow whose runs are processes of their own."""
    endless = {"sft.steps": 100_000}
    run = served.start("compare", recipes=["small", "other"], seeds=1, folder="runs/killed", overrides=endless)
    until(lambda: (served.folder / "runs" / "killed" / "start-0" / "metrics.jsonl").exists(), "a run of its own")
    process = served.process_of(run)
    assert process is not None
    everyone = family(process)
    assert any("pipeline.cli train" in words for words in commands(everyone))
    os.kill(process, signal.SIGKILL)
    assert served.ended(run)["state"]["name"] == "Crashed"
    until(lambda: not alive(everyone), "the end of what it had started", 60)


def test_silent_runs_are_marked_crashed_and_a_retry_gives_the_same_bytes(
    served: Served, silenced: str, orphaned: str, whole: dict[str, str]
) -> None:
    """The automation saw them: one lost its runner, the other its server too, which was started again."""
    for run in (orphaned, silenced):
        end = served.ended(run)["state"]
        assert end["name"] == "Crashed"
        assert "No heartbeat for 90 s" in end["message"]
    served.retry(orphaned)
    assert served.ended(orphaned)["state"]["name"] == "Completed"
    until(lambda: went_on(served, orphaned), "the line that says so", 60)
    assert fingerprint(served.folder / "runs" / "orphaned") == whole


def test_no_process_of_a_flow_is_left(served: Served) -> None:
    until(lambda: not served.processes("prefect.engine"), "the end of every flow", 60)
    assert not [p for p in served.processes("pipeline.cli") if Path(f"/proc/{p}").exists()]
