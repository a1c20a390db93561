"""`verizero serve` end to end: forms, schedules, approvals, cancels, kills on a real server; its UI in a browser.

The tests share one server and stand in an order: the run whose runner is killed first is looked at last, when the
silence of its process has been noticed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pipeline.config.load import dump
from pipeline.stages.campaign import read_record
from pipeline.stages.promotion import champion_of
from tests.flows.served import ROOT, Served, until
from tests.stages.test_promotion import HALF, NEAR, finished
from tests.stages.tiny import tiny

pytestmark = [pytest.mark.integration, pytest.mark.slow]
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
PICTURES = ROOT / "tests" / "output"
"""Screenshots, for people; not kept in the repository."""
SMALL = {"sft": {"steps": 20}, "rl": {"rounds": 1, "steps_per_round": 2}}
ENDLESS = {"rl.steps_per_round": 100_000}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "recipes").mkdir()
    (folder / "recipes" / "small.yaml").write_text(dump(tiny({**SMALL, "name": "small"})))
    server = Served(folder)
    try:
        server.wait()
        yield server
    finally:
        server.stop()
        left = until(lambda: not server.processes() or None, "the end of all processes", 60)
        assert left
        print((folder / "home" / "runner.log").read_text()[-3000:])


@pytest.fixture(scope="module")
def silenced(served: Served) -> tuple[str, int]:
    """A run in the midst of training whose runner is killed; and the process that it had."""
    run = served.start("train", recipe="small", run_name="silenced", overrides=ENDLESS)
    checkpoints = served.folder / "runs" / "silenced" / "checkpoints"
    until(lambda: len(list(checkpoints.glob("0*"))) >= 2, "a checkpoint of RL")
    process = served.process_of(run)
    assert process is not None
    (runner,) = served.processes("flows.serve\0")
    os.kill(runner, signal.SIGKILL)
    return run, process


def test_every_flow_is_deployed_with_its_form(served: Served) -> None:
    found = {d["entrypoint"].rpartition(".")[2] for d in served.post("/deployments/filter")}
    names = {"train", "sft", "rl_rounds", "evaluate", "compare", "verify_dataset", "audit_verifier", "promote"}
    assert found == names
    form = served.deployment("train")["parameter_openapi_schema"]["properties"]
    assert list(form) == ["recipe", "rounds", "stages", "resume", "run_name", "overrides"]
    assert {"small", "demo_short"} <= set(form["recipe"]["enum"])
    assert form["resume"]["enum"] == ["auto", "never", "must"]
    assert all(field["description"] for field in form.values())
    assert "1 or more" in form["rounds"]["description"]
    assert served.deployment("rl-rounds")["global_concurrency_limit"]["limit"] == 1
    names = {a["name"]: a["enabled"] for a in served.post("/automations/filter")}
    assert names["verizero: silent runs have crashed"]
    assert sum(not on for on in names.values()) == 2


def test_a_killed_runner_takes_its_flows_along_and_is_started_again(served: Served, silenced: tuple[str, int]) -> None:
    until(lambda: not Path(f"/proc/{silenced[1]}").exists(), "the end of the flow's process", 30)
    until(lambda: "the runner ended (-9) and is started again" in served.log.read_text(), "the new runner")
    assert served.state(silenced[0]) == "Running", "nobody has told the server yet"


def test_a_wrong_value_fails_the_run_before_it_begins(served: Served) -> None:
    run = served.ended(served.start("train", recipe="small", run_name="bad", rounds=0))
    assert run["state"]["name"] == "Failed"
    assert "ConfigError: rounds must be a whole number >= 1, got 0; leave it empty" in run["state"]["message"]
    assert not (served.folder / "runs" / "bad").exists()


def test_a_run_started_by_api_completes_and_shows_itself(served: Served) -> None:
    run = served.ended(served.start("train", recipe="small", run_name="by-api", overrides={"seed": 5}))
    assert run["state"]["name"] == "Completed"
    assert run["name"] == "by-api"
    assert json.loads((served.folder / "runs" / "by-api" / "summary.json").read_text())["steps"] == 2
    stages = {r["name"] for r in served.post("/flow_runs/filter")}
    assert {"by-api sft", "by-api rl"} <= stages
    artifacts = {a["key"]: a for a in served.post("/artifacts/filter") if a["key"]}
    assert {"by-api-rounds", "by-api-samples", "by-api-page", "report"} <= artifacts.keys()
    assert "data:image/svg+xml;base64," in artifacts["by-api-rounds"]["data"]
    answers = json.loads(artifacts["by-api-samples"]["data"])
    assert {"prompt", "response", "verdict", "reason", "reward"} <= answers[0].keys()

    def completed() -> Any:
        names = {"event": {"name": ["verizero.round.completed"]}, "order": "DESC"}
        return served.post("/events/filter", filter=names)["events"]

    (event,) = [e for e in until(completed, "the event") if e["payload"]["folder"].endswith("by-api")]
    assert event["payload"]["round"] == 1
    assert [r for r in event["related"] if r["prefect.resource.id"].startswith("prefect.flow-run.")]


def test_cancel_ends_the_process_and_a_retry_goes_on(served: Served) -> None:
    run = served.start("train", recipe="small", run_name="cancelled", overrides={"rl.steps_per_round": 60})
    checkpoints = served.folder / "runs" / "cancelled" / "checkpoints"
    until(lambda: len(list(checkpoints.glob("0*"))) >= 2, "a checkpoint of RL")
    process = served.process_of(run)
    served.post(f"/flow_runs/{run}/set_state", state={"type": "CANCELLING"})
    until(lambda: not Path(f"/proc/{process}").exists(), "the end of the flow's process", 60)
    assert served.ended(run)["state"]["name"] == "Cancelled"
    until(lambda: not served.processes("prefect.engine"), "the end of every flow", 60)
    assert not (served.folder / "runs" / "cancelled" / "summary.json").exists()
    served.post(f"/flow_runs/{run}/set_state", state={"type": "SCHEDULED", "name": "AwaitingRetry"}, force=True)
    until(lambda: served.state(run) == "Running", "the retry")
    assert served.ended(run)["state"]["name"] == "Completed"

    def said() -> bool:
        lines = served.post("/logs/filter", logs={"flow_run_id": {"any_": [run]}})
        return any("going on from checkpoint" in line["message"] for line in lines)

    until(said, "the line that says so", 60)


def test_a_killed_flow_is_marked_crashed(served: Served) -> None:
    run = served.start("train", recipe="small", run_name="killed", overrides=ENDLESS)
    until(lambda: (served.folder / "runs" / "killed" / "checkpoints").is_dir(), "a checkpoint")
    process = served.process_of(run)
    assert process is not None
    os.kill(process, signal.SIGKILL)
    assert served.ended(run)["state"]["name"] == "Crashed"
    until(lambda: not served.processes("prefect.engine"), "the end of what it had started", 30)


def test_a_schedule_fires_by_itself_until_the_campaign_is_over(served: Served) -> None:
    deployment = served.deployment("rl-rounds")["id"]
    limits = {"campaign": "nightly", "recipe": "small", "max_rounds": 1}
    schedule = {"schedule": {"interval": 20}, "active": True, "parameters": limits}
    (made,) = served.post(f"/deployments/{deployment}/schedules", [schedule])
    folder = served.folder / "campaigns" / "nightly"
    try:
        until(lambda: read_record(folder)["over"], "the end of the campaign")
    finally:
        served.delete(f"/deployments/{deployment}/schedules/{made['id']}")
    record = read_record(folder)
    assert record["over"] == "1 rounds of max_rounds=1"
    assert [f["state"] for f in record["firings"]] == ["done"]
    assert (folder / "runs" / "firing-001" / "model").is_dir()


def test_a_person_approves_a_paused_promotion(served: Served) -> None:
    registry = served.folder / "registry"
    for name, rates in (("old", HALF), ("new", NEAR)):
        finished(served.folder, name, rates)
    first = served.ended(served.start("promote", run="old", registry="registry"))
    assert first["state"]["name"] == "Completed"
    assert champion_of(registry) == registry / "versions" / "0001"
    run = served.start("promote", run="new", registry="registry")
    until(lambda: served.state(run) == "Paused", "the question")
    asked = served.run(run)["state"]["state_details"]["run_input_keyset"]
    text = served.get(f"/flow_runs/{run}/input/{asked['description']}")
    assert "may be better or worse than the champion" in text
    assert "data:image/svg+xml;base64," in text
    form = served.get(f"/flow_runs/{run}/input/{asked['schema']}")
    assert form["properties"]["promote"]["default"] is False
    assert champion_of(registry) == registry / "versions" / "0001"
    served.post(f"/flow_runs/{run}/resume", run_input={"promote": True, "why": "looks good"})
    assert served.ended(run)["state"]["name"] == "Completed"
    assert champion_of(registry) == registry / "versions" / "0002"
    manifest = json.loads((registry / "champion" / "manifest.json").read_text())
    assert manifest["decided_by"] == "a person: looks good"


@pytest.fixture
def browser(served: Served) -> Iterator[Any]:
    """A page, and the hosts other than loopback that any page was let to ask."""
    from playwright.sync_api import sync_playwright

    PICTURES.mkdir(exist_ok=True)
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = chromium.new_page(viewport={"width": 1280, "height": 1200}, color_scheme="light")
        page.set_default_timeout(120_000)
        yield page
        chromium.close()


def test_in_the_browser_a_form_starts_a_run_and_its_artifacts_open(served: Served, browser: Any) -> None:
    asked: set[str] = set()
    browser.on("requestfinished", lambda r: asked.add(urlsplit(r.url).hostname or "data"))
    browser.on("requestfailed", lambda r: asked.add(r.failure) if "csp" not in str(r.failure) else None)
    deployment = served.deployment("train")["id"]
    browser.goto(f"{served.address}/deployments/deployment/{deployment}/run")
    browser.get_by_text("One of those in configs/ and of your own folder.").wait_for()
    browser.locator(".p-select-button__control").first.focus()
    browser.keyboard.press("ArrowDown")
    browser.locator("[class*=select-option]").get_by_text("small", exact=True).last.click()
    browser.screenshot(path=PICTURES / "form.png")
    browser.get_by_role("button", name="Submit").click()
    browser.wait_for_url(f"**/deployments/deployment/{deployment}*")

    def new() -> Any:
        runs = served.post("/flow_runs/filter", flow_runs={"deployment_id": {"any_": [deployment]}})
        return next((r["id"] for r in runs if r["parameters"].get("run_name") is None), None)

    run = until(new, "the run that the form asked for")
    assert served.ended(run)["state"]["name"] == "Completed"
    browser.goto(f"{served.address}/runs/flow-run/{run}")
    browser.get_by_text("Completed").first.wait_for()
    browser.screenshot(path=PICTURES / "run.png")
    made = served.post("/artifacts/filter", sort="CREATED_DESC")
    artifact = next(a["id"] for a in made if a["key"] == "small-rounds")
    browser.goto(f"{served.address}/artifacts/artifact/{artifact}")
    picture = browser.locator("img[src^='data:image/svg']").first
    picture.wait_for()
    assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") > 100
    browser.screenshot(path=PICTURES / "artifact.png")
    browser.goto(f"{served.address}/v2/artifacts")
    browser.get_by_text("small-rounds").first.wait_for()
    assert asked <= {"127.0.0.1", "data", "net::ERR_ABORTED"}, "no request leaves this machine"


def test_a_silent_run_is_marked_crashed_by_the_automation(served: Served, silenced: tuple[str, int]) -> None:
    run = served.ended(silenced[0])
    assert run["state"]["name"] == "Crashed"
    assert "No heartbeat for 90 s" in run["state"]["message"]


def test_deploy_registers_the_same_flows_for_a_work_pool(served: Served) -> None:
    lost = served.command("deploy", "--pool", "gpus")
    assert lost.returncode == 1
    assert "no such work pool" in lost.stderr
    assert "Traceback" not in lost.stderr
    served.post("/work_pools/", name="gpus", type="process")
    done = served.command("deploy", "--pool", "gpus", "--recipes", "recipes", "--srun=--gpus=8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("deployed ") == 8
    deployment = served.deployment("train")
    assert deployment["work_pool_name"] == "gpus"
    assert deployment["job_variables"]["command"].startswith("srun ")
    assert "small" in deployment["parameter_openapi_schema"]["properties"]["recipe"]["enum"]
    assert len(served.post("/automations/filter")) == 3, "made once"
