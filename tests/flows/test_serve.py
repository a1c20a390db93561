"""`verizero serve` end to end: every flow by its form, schedules, approvals, on a real server; its UI in a browser."""

import json
import re
import sqlite3
import time

import httpx
import pytest

from tests.commands.test_promote import HALF, NEAR, finished
from tests.flows.served import PICTURES, page_of, serving, until
from verizero.flows.serve import MAX_RESTARTS, RESTARTS_WITHIN_S, ServerAndRunner
from verizero.pipeline.commands.campaign import read_record
from verizero.pipeline.commands.promote import champion_of
from verizero.pipeline.errors import RunError

pytestmark = pytest.mark.run


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("served")) as server:
        yield server


def cells(table):
    """The cells of a table in Markdown without | in them, line by line."""
    return [line.strip("| ").split(" | ") for line in table.splitlines()]


def test_every_flow_is_deployed_with_its_form(served):
    found = {d["entrypoint"].rpartition(".")[2] for d in served.post("/deployments/filter")}
    names = {"train", "rl_rounds", "evaluate", "promote"}
    assert found == names
    form = served.deployment("train")["parameter_openapi_schema"]["properties"]
    assert list(form) == ["recipe", "rounds", "stages", "resume", "folder", "overrides"]
    assert form["recipe"]["enum"][:2] == ["demo", "small"]
    assert form["resume"]["enum"] == ["auto", "never", "must", "changed"]
    assert served.deployment("rl-rounds")["global_concurrency_limit"]["limit"] == 1
    names = {a["name"]: a["enabled"] for a in served.post("/automations/filter")}
    assert names["verizero: silent runs have crashed"]
    until((served.folder / "home" / "runner_storage").is_dir, "the runner's folder, for each user one")


def test_a_wrong_value_fails_the_run_before_it_begins(served):
    run = served.ended(served.start("train", recipe="small", folder="bad", rounds=0))
    assert run["state"]["name"] == "Failed"
    assert "ConfigError: rounds must be a whole number >= 1, got 0; leave it empty" in run["state"]["message"]
    assert not (served.folder / "runs" / "bad").exists()
    with pytest.raises(AssertionError, match="'maybe' is not one of"):
        served.start("train", recipe="small", folder="bad", resume="maybe")


def test_an_error_inside_a_flow_is_said_once_and_plainly(served):
    lost = served.command(
        *("train", "recipes/small.yaml", "--set", "name=lost", "--set", "data.train=[{file: lost.jsonl}]")
    )
    assert lost.returncode == 1
    assert "lost.jsonl" in lost.stderr
    assert "Traceback" not in lost.stderr
    assert lost.stderr.count("verizero: ") == 1


@pytest.fixture(scope="module")
def by_form(served, chromium):
    """The id of a run that was started by the form in the browser and is complete; its folder is runs/small."""
    deployment = served.deployment("train")["id"]

    def new():
        runs = served.post("/flow_runs/filter", flow_runs={"deployment_id": {"any_": [deployment]}})
        return next((r["id"] for r in runs if r["parameters"].get("folder") is None), None)

    with page_of(chromium) as page:
        page.goto(f"{served.address}/deployments/deployment/{deployment}/run")
        page.get_by_text("A recipe of configs/ or of your own folder.").wait_for()
        page.locator(".p-select-button__control").first.focus()
        page.keyboard.press("ArrowDown")
        page.locator("[class*=select-option]").get_by_text("small", exact=True).last.click()
        page.locator("textarea").last.fill("problem: noise: a=b. Remedy: --set sft.steps=4")
        page.screenshot(path=PICTURES / "form.png")
        page.get_by_role("button", name="Submit").click()
        page.wait_for_url(f"**/deployments/deployment/{deployment}*")
        run = str(until(new, "the run that the form asked for"))
    end = served.ended(run)
    assert (end["name"], end["state"]["name"]) == ("small", "Completed")
    return run


def test_a_run_shows_itself(served, by_form):
    folder = served.folder / "runs" / "small"
    assert json.loads((folder / "summary.json").read_text())["steps"] == 2
    assert "steps: 4\n" in (folder / "recipe.yaml").read_text(), "as the form asks"
    stages = {r["name"] for r in served.post("/flow_runs/filter")}
    assert {"small sft", "small rl"} <= stages
    artifacts = {a["key"]: a for a in served.post("/artifacts/filter") if a["key"]}
    assert {"small-rounds", "small-samples", "report"} <= artifacts.keys()
    assert "data:image/svg+xml;base64," in artifacts["small-rounds"]["data"]
    (line,) = [x for x in artifacts["small-rounds"]["data"].splitlines() if x.startswith("| 1 |")]
    assert re.search(r"\| [01]\.\d{3} \|$", line), "held-out pass@1 after the round"
    heads = cells(artifacts["small-samples"]["data"])[0]
    assert {"prompt", "response", "verdict", "reason", "reward"} <= set(heads)

    def completed():
        names = {"event": {"name": ["verizero.round.completed"]}, "order": "DESC"}
        events = served.post("/events/filter", filter=names)["events"]
        return [e for e in events if e["payload"]["folder"] == str(folder)]

    (event,) = until(completed, "the event")
    assert event["payload"]["round"] == 1
    assert [r for r in event["related"] if r["prefect.resource.id"].startswith("prefect.flow-run.")]


@pytest.mark.nightly
def test_a_schedule_fires_by_itself_until_the_campaign_is_over(served):
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
    assert [f["state"] for f in record["runs"]] == ["done"]
    assert (folder / "runs" / "run-001" / "model").is_dir()


def test_each_of_the_other_flows_runs_and_leaves_its_artifact(served, by_form):
    """All at once: what each of them does is tested elsewhere."""
    runs = {
        "train": served.start("train", recipe="small", stages=["sft"], folder="small-sft"),
        "evaluate": served.start("evaluate", recipe="small"),
    }
    ends = {flow: served.ended(run)["state"] for flow, run in runs.items()}
    assert {flow: end["name"] for flow, end in ends.items()} == dict.fromkeys(runs, "Completed"), ends
    shown = {flow: served.artifacts(run) for flow, run in runs.items()}
    assert str(served.folder / "runs" / "small-sft" / "report.html") in shown["train"]["report"]
    assert ends["train"]["message"] == f"Report: {served.folder / 'runs' / 'small-sft' / 'report.html'}"
    assert json.loads((served.folder / "runs" / "small-sft" / "summary.json").read_text())["name"] == "small-sft"
    assert "arithmetic" in shown["evaluate"]["evaluation"]


@pytest.fixture(scope="module")
def champion(served):
    """A registry whose champion is as good as the run `new`; promoted by the flow, as there was none before."""
    for name, rates in (("old", HALF), ("new", NEAR)):
        finished(served.folder, name, rates)
    first = served.ended(served.start("promote", run="old", registry="registry"))
    assert first["state"]["name"] == "Completed"
    registry = served.folder / "registry"
    assert champion_of(registry) == registry / "versions" / "0001"
    assert first["state"]["message"] == "promoted as registry/versions/0001 by first"
    return registry


def test_a_question_that_nobody_answers_keeps_the_champion_and_says_so(served, champion):
    run = served.start("promote", run="new", registry="registry", answer_within_hours=0.001)
    until(lambda: served.state(run) == "Completed", "the end")  # the server calls it failed until the flow says more
    assert served.run(run)["state"]["message"] == (
        "kept back by default: nobody answered within 0.001 h; the champion stays"
    )
    assert champion_of(champion) == champion / "versions" / "0001"
    last = json.loads((champion / "decisions.jsonl").read_text().splitlines()[-1])
    assert (last["decision"], last["decided_by"]) == ("kept back", "default: nobody answered within 0.001 h")


def test_a_person_approves_a_paused_promotion_in_the_browser(served, champion, browser):
    run = served.start("promote", run="new", registry="registry")
    browser.goto(f"{served.address}/runs/flow-run/{run}")
    until(lambda: served.state(run) == "Paused", "the question")
    browser.get_by_text("may be better or worse than the champion").first.wait_for()
    assert served.run(run)["name"].startswith("Promote? new may be better or worse than the champion: pass@1")
    asked = served.run(run)["state"]["state_details"]["run_input_keyset"]
    form = served.get(f"/flow_runs/{run}/input/{asked['schema']}")
    assert form["properties"]["promote"]["default"] is False
    browser.reload()  # so that the page asks for the form of the state that it is in
    browser.get_by_role("button", name="Resume").click()
    browser.locator("#p-modal-teleport-target").get_by_text("may be better or worse than the champion").wait_for()
    answer = browser.get_by_role("switch")
    assert answer.get_attribute("aria-checked") == "false", "left as it is, nothing is promoted"
    answer.click()
    browser.locator("textarea").last.fill("looks good")
    browser.screenshot(path=PICTURES / "approve.png")
    assert champion_of(champion) == champion / "versions" / "0001"
    browser.get_by_role("button", name="Submit").click()
    assert served.ended(run)["state"]["name"] == "Completed"
    assert champion_of(champion) == champion / "versions" / "0002"
    manifest = json.loads((champion / "champion" / "manifest.json").read_text())
    assert (manifest["name"], manifest["decided_by"]) == ("new", "a person: looks good")


@pytest.mark.nightly
def test_in_the_browser_the_artifacts_of_a_run_open(served, browser, by_form):
    browser.goto(f"{served.address}/runs/flow-run/{by_form}")
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


def test_nobody_starts_code_without_the_login_or_from_another_page(served):
    train = f"{served.address}/api/deployments/{served.deployment('train')['id']}/create_flow_run"
    body = {"parameters": {"recipe": "small"}}
    assert httpx.post(train, json=body).status_code == 401
    assert httpx.post(train, json=body, auth=("tests", "wrong")).status_code == 401
    for odd in ({"origin": "http://evil.example"}, {"host": "evil.example"}):
        assert httpx.post(train, json=body, auth=("tests", "secret"), headers=odd).status_code == 421
    home = served.folder / "home"
    assert home.stat().st_mode & 0o77 == 0
    page = httpx.options(
        train, headers={"origin": served.address, "access-control-request-method": "POST"}, auth=("tests", "secret")
    )
    assert page.headers.get("access-control-allow-origin") in (served.address, None)


def test_only_ends_within_some_minutes_are_too_many(tmp_path):
    pair = ServerAndRunner.__new__(ServerAndRunner)
    pair.restarts = [time.monotonic() - RESTARTS_WITHIN_S] * MAX_RESTARTS
    for _ in range(MAX_RESTARTS):
        pair._count(tmp_path)
    with pytest.raises(RunError, match=f"{MAX_RESTARTS + 1} times"):
        pair._count(tmp_path)


def test_an_end_pauses_no_schedule(served):
    served.stop()
    with sqlite3.connect(served.folder / "home" / "prefect.db") as base:
        assert base.execute("select distinct paused from deployment").fetchall() == [(0,)]
