"""`verizero serve` when something ends: cancels from the UI, kills of each process, and retries that continue a run."""

import json
import os
import re
import signal
import time

import pytest

from tests.flows.served import PICTURES, page_of, serving, until
from tests.processes import alive, commands, family
from tests.stages.kill_driver import fingerprint
from tests.stages.tiny import TREE
from verizero.flows.deployments import HEARTBEAT, SILENT_S
from verizero.flows.process_lifetime import END_WITHIN_S
from verizero.flows.serve import FLOWS_GRACE_S, SETTINGS
from verizero.pipeline.config.recipes import request_of
from verizero.pipeline.host.child import GRACE_S
from verizero.pipeline.host.disk import numbered_jsonl
from verizero.pipeline.host.network import free_port
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.whole_run import train

pytestmark = [pytest.mark.run, pytest.mark.nightly]
LONG = {"rl.steps_per_round": 40}
"""Enough steps to be cancelled in the middle."""
SLOW = """
import time
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.base import VerifierParams, verifier


@verifier
def slow(attempt: Attempt, params: VerifierParams) -> Verdict:
    time.sleep(0.06)
    return Verdict("graded", float(len(attempt.response) % 2), "length")
"""
"""A second for each step, so that a run in the background leaves the cores to others."""
ENDLESS = {
    "rl.steps_per_round": 100_000,
    "data.train": [{**TREE["data"]["train"][0], "verifier": {"path": "slow.py:slow"}}],
}
HELD = """
import time
from pathlib import Path


def held(row):
    folder = Path(__file__).parent
    while row.stage == "rl" and row.kind == "step" and (folder / "hold").exists():
        (folder / "holding").touch()
        time.sleep(0.1)
"""
"""A step that takes as long as there is a file."""
CANCELLED_WITHIN_S = 15.0


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("served")) as server:
        (server.folder / "recipes" / "slow.py").write_text(SLOW)
        (server.folder / "recipes" / "held.py").write_text(HELD)
        yield server


@pytest.fixture(scope="module", autouse=True)
def no_flow_is_left(served):
    """Cancel the runs that tests left behind; their processes must end."""
    yield
    running = {"state": {"type": {"any_": ["RUNNING", "PENDING"]}}}
    for run in served.post("/flow_runs/filter", flow_runs=running):
        served.cancel(run["id"])
    until(lambda: not served.processes("prefect.engine"), "the end of every flow")
    until(lambda: not served.processes("verizero.pipeline.cli train"), "the end of every rank")


@pytest.fixture(scope="module")
def whole(served, tmp_path_factory):
    """The fingerprint of the run of LONG that nobody disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    request = request_of("small", user_folder=served.folder / "recipes", run_name="whole", overrides=LONG)
    train(request.config, request.base_dir, folder, "auto", Progress())
    return fingerprint(folder)


@pytest.fixture(scope="module")
def endless(served):
    """Gives name and id of a run of ENDLESS in the middle of training: the last one while it runs, else a new one."""
    runs = []

    def running():
        if not runs or served.process_of(runs[-1][1]) is None:
            name = f"endless-{len(runs)}"
            runs.append((name, in_rl(served, name, ENDLESS)))
        return runs[-1]

    return running


Killed = tuple[str, str, bool]
"""A run whose process was killed, its state right after that, and if the process was gone."""


@pytest.fixture(scope="module")
def orphaned(served):
    """A run of LONG whose `verizero serve` was killed in the middle of training, and started again."""
    run = in_rl(served, "orphaned", LONG)
    everyone = family(served.process.pid)
    assert len(everyone) >= 4, "serve, the server, the runner, the flow"
    os.kill(served.process.pid, signal.SIGKILL)
    served.process.wait()
    until(lambda: not alive(everyone), "the end of all that serve had started")
    assert not served.processes()
    served.process = served.serve()
    served.wait()
    return run, served.state(run), served.process_of(run) is None


@pytest.fixture(scope="module")
def silenced(served, endless):
    """A run of ENDLESS whose runner was killed in the middle of training."""
    _, run = endless()
    process = served.process_of(run)
    (runner,) = served.processes("verizero.flows.serve ")
    everyone = family(runner)
    assert process in everyone
    os.kill(runner, signal.SIGKILL)
    until(lambda: not alive(everyone), "the end of the flow and all that it had started")
    until(lambda: re.search(r"runner ended .*-9", served.log.read_text()), "the new runner")
    return run, served.state(run), served.process_of(run) is None


@pytest.fixture(scope="module")
def suspended(served, chromium):
    """A run of LONG that was suspended in the browser within a step, which took longer than a heartbeat after that."""
    recipes = served.folder / "recipes"
    (recipes / "hold").touch()
    fields = {"folder": "suspended", "resume": "never", "overrides": {**LONG, "callbacks": ["held.py:held"]}}
    run = served.start("train", recipe="small", **fields)
    until((recipes / "holding").exists, "a step of RL")
    process = served.process_of(run)
    everyone = family(process)
    with page_of(chromium) as page:
        page.goto(f"{served.address}/runs/flow-run/{run}")
        page.get_by_role("button", name="Suspend").click()
        page.locator("#p-modal-teleport-target input").fill("86400")
        page.get_by_role("button", name="Submit").click()
        until(lambda: served.state(run) == "Suspended", "the state")
    beats = {
        "event": {"name": [HEARTBEAT]},
        "resource": {"id": [f"prefect.flow-run.{run}"]},
        "occurred": {"since": served.run(run)["state"]["timestamp"]},
    }
    until(lambda: served.post("/events/filter", filter=beats)["events"], "a heartbeat of the suspended run")
    assert alive(everyone), "the step goes on"
    (recipes / "hold").unlink()
    until(lambda: not alive(everyone), "the end of the process", 60)
    return run


def in_rl(served, name, overrides):
    """The id of a new run of that name, which has begun with RL."""
    run = served.start("train", recipe="small", folder=name, overrides=overrides)
    until(lambda: num_steps(served, name) > 0, f"a step of {name}")
    return run


def num_steps(served, name):
    """Lines of RL steps that the run has written so far."""
    path = served.folder / "runs" / name / "metrics.jsonl"
    return (
        sum(row["kind"] == "step" and row["stage"] == "rl" for _, row in numbered_jsonl(path)) if path.exists() else 0
    )


def has_continued(served, run):
    """The run's log tells from which checkpoint it continued."""
    lines = served.post("/logs/filter", logs={"flow_run_id": {"any_": [run]}})
    return any("from checkpoint" in line["message"] for line in lines)


def test_a_killed_serve_takes_its_flows_along(orphaned):
    assert orphaned[1:] == ("Running", True), "nobody has told the server yet"


def test_a_killed_server_is_started_again_while_the_run_continues(served, endless):
    name, run = endless()
    process = served.process_of(run)
    (server,) = served.processes("verizero.flows.server ")
    os.kill(server, signal.SIGKILL)
    until(lambda: re.search(r"server ended .*-9", served.log.read_text()), "the new server")
    until(lambda: served.processes("verizero.flows.server ") not in ([], [server]), "its process")
    done = num_steps(served, name)
    until(lambda: num_steps(served, name) > done + 2, "further steps")
    until(served.answers, "its answer")
    assert served.process_of(run) == process is not None
    assert served.state(run) == "Running"


def test_suspend_in_the_browser_ends_the_process_after_the_step(served, suspended):
    assert num_steps(served, "suspended") == 1
    assert served.state(suspended) == "Suspended"
    stages = served.post("/flow_runs/filter", flow_runs={"name": {"any_": ["suspended sft", "suspended rl"]}})
    assert {stage["name"]: stage["state"]["name"] for stage in stages} == {
        "suspended sft": "Completed",
        "suspended rl": "Suspended",
    }


def test_a_killed_runner_takes_its_flows_along_and_is_started_again(silenced):
    assert silenced[1:] == ("Running", True), "nobody has told the server yet"


def test_a_cancel_in_the_browser_ends_every_process_and_a_retry_gives_the_same_bytes(served, browser, whole):
    run = served.start("train", recipe="small", folder="cancelled", overrides=LONG)
    browser.goto(f"{served.address}/runs/flow-run/{run}")
    browser.get_by_role("button", name="Cancel").wait_for()
    until(lambda: num_steps(served, "cancelled") > 0, "a step of RL")
    process = served.process_of(run)
    everyone = family(process)
    browser.get_by_role("button", name="Cancel").click()
    browser.get_by_role("button", name="Confirm").click()
    begin = time.monotonic()
    until(lambda: not alive(everyone), "the end of every process")
    print(f"{len(everyone)} processes ended {time.monotonic() - begin:.1f} s after the click on Cancel")
    end = served.ended(run)
    assert (end["name"], end["state"]["name"]) == ("cancelled", "Cancelled")
    ended = json.loads((served.folder / "runs" / "cancelled" / "summary.json").read_text())["ended"]
    assert ended["where"].startswith("round 1 step ")
    browser.screenshot(path=PICTURES / "cancelled.png")
    browser.goto("about:blank")  # a page of the UI asks for the run's state as long as it is open
    assert_retried(served, run, "cancelled", whole)


def assert_retried(served, run, name, whole):
    """A retry of the run completes it from its checkpoint, with the bytes of a run that nobody disturbed."""
    served.retry(run)
    end = served.ended(run)["state"]
    assert end["name"] == "Completed", end["message"]
    until(lambda: has_continued(served, run), "the line that tells so")
    assert fingerprint(served.folder / "runs" / name) == whole
    assert_stages_named(served, name)


def assert_stages_named(served, name):
    """Each stage of the run is a run of its own flow, however often the run was begun."""
    flows = {flow["id"]: flow["name"] for flow in served.post("/flows/filter")}
    stages = served.post("/flow_runs/filter", flow_runs={"name": {"like_": f"{name} "}})
    assert {stage["name"] for stage in stages} == {f"{name} {stage}" for stage in ("base", "sft", "rl")}
    assert all(stage["name"] == f"{name} {flows[stage['flow_id']]}" for stage in stages)


def test_what_a_cancel_waits_for_is_less_than_what_is_promised():
    """Times on a loaded machine are its own: what we allow each part to take must fit."""
    told = float(SETTINGS["PREFECT_RUNNER_POLL_FREQUENCY"])
    assert told + END_WITHIN_S < CANCELLED_WITHIN_S, "the runner hears of it, then the flow has its time"
    assert GRACE_S < END_WITHIN_S, "ranks are ended by the flow, which is there to see it"
    assert END_WITHIN_S < FLOWS_GRACE_S < CANCELLED_WITHIN_S, "serve that is stopped waits for its flows"


def test_a_group_of_ranks_trains_and_a_cancel_leaves_none_of_it(served):
    two = {"launch.gpus_per_node": 2, "launch.kind": "torchrun", "launch.port": free_port()}
    run = in_rl(served, "two", {**ENDLESS, **two})
    one = {**two, "launch.gpus_per_node": 1, "launch.kind": "torchrun"}  # each rank imports torch again
    local = served.start("train", recipe="small", folder="one-local", overrides=one)
    process = served.process_of(run)
    everyone = family(process)
    words = commands(everyone)
    assert sum("verizero.pipeline.cli train" in w and "torch.distributed.run" not in w for w in words) >= 2, words
    served.cancel(run)
    begin = time.monotonic()
    until(lambda: not alive(everyone), "the end of every rank")
    print(f"{len(everyone)} processes of a group ended {time.monotonic() - begin:.1f} s after the cancel")
    assert served.ended(run)["state"]["name"] == "Cancelled"
    assert served.ended(local)["state"]["name"] == "Completed"
    folder = served.folder / "runs" / "one-local"
    assert "round 1 2/2" in (folder / "logs" / "rank0.log").read_text()
    assert "report" in served.artifacts(local)


def test_a_killed_flow_is_marked_crashed_and_what_it_had_started_is_gone(served):
    """Of a flow whose ranks are processes of their own."""
    own = {"launch.kind": "torchrun", "launch.gpus_per_node": 1, "launch.port": free_port()}
    run = in_rl(served, "killed", {**ENDLESS, **own})
    process = served.process_of(run)
    everyone = family(process)
    assert any("verizero.pipeline.cli train" in words for words in commands(everyone))
    os.kill(process, signal.SIGKILL)
    assert served.ended(run)["state"]["name"] == "Crashed"
    until(lambda: not alive(everyone), "the end of what it had started")


def test_silent_runs_are_marked_crashed_and_a_retry_gives_the_same_bytes(
    served, suspended, silenced, orphaned, whole, browser
):
    """The automation sees both: one lost its runner, the other its server too, which was started again.

    It takes SILENT_S; the test is the last of the file so that the others run in that time. The suspended run, whose
    process ended before, is no silent one.
    """
    for run in (orphaned[0], silenced[0]):
        end = served.ended(run)["state"]
        assert end["name"] == "Crashed"
        assert f"{SILENT_S} s" in end["message"]
    assert_retried(served, orphaned[0], "orphaned", whole)
    browser.goto(f"{served.address}/runs/flow-run/{suspended}")
    browser.get_by_text("Finished in state Suspended").first.wait_for()
    browser.screenshot(path=PICTURES / "suspended.png")
    browser.get_by_role("button", name="Resume").click()
    browser.locator("#p-modal-teleport-target").get_by_role("button", name="Submit").click()
    assert served.ended(suspended)["state"]["name"] == "Completed"
    browser.reload()
    browser.get_by_text("Finished in state Completed").first.wait_for()
    browser.screenshot(path=PICTURES / "resumed.png")
    assert fingerprint(served.folder / "runs" / "suspended") == whole
    assert_stages_named(served, "suspended")
