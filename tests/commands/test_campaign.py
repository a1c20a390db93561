"""A campaign: runs that continue each other, new data, limits, the lock, and a run that was killed."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.launch.runs import rows
from tests.stages.broken import Broken, run
from tests.stages.kill_driver import fingerprint
from tests.stages.tiny import tiny
from verizero.pipeline.commands.campaign import fire, read_record, why_over
from verizero.pipeline.config.campaign import CampaignConfig, campaign_config
from verizero.pipeline.config.load import dump
from verizero.pipeline.config.recipes import read_request, run_folder
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.host.disk import locked
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.whole_run import train

pytestmark = pytest.mark.run  # whole runs

SMALL = {
    "sft": {"steps": 8},
    # the bonus moves the policy where no answer is right
    "rl": {"steps_per_round": 2, "select": {"keep": "all"}, "algorithm": {"name": "grpo", "entropy_coef": 0.05}},
    "rollout": {"max_response_tokens": 8},
}


@pytest.fixture
def request_(tmp_path):
    (tmp_path / "small.yaml").write_text(dump(tiny(SMALL)))
    return read_request(tmp_path / "small.yaml")


def trained(request):
    return train(request.config, request.base_dir, run_folder(request.config), "auto", Progress())


def killed_after_a_step(request):
    """Trains until the first RL step is in a checkpoint, then ends as if it were killed."""
    run(request.config, run_folder(request.config), ("generate", 2))


def fired(folder, request, run=trained, **fields):
    return fire(campaign_config(name="math", **fields), request, run, say=lambda text: None, base=folder)


def row(number):
    return json.dumps(
        {"id": f"new/{number}", "question": f"{number}+1=", "answer": str(number + 1), "verifier": "math"}
    )


def test_a_run_goes_on_from_the_model_of_the_one_before(tmp_path, request_):
    first, second = fired(tmp_path, request_), fired(tmp_path, request_)
    assert (first.did, second.did) == ("trained", "trained")
    record = read_record(tmp_path / "campaigns" / "math")
    one, two = record["runs"]
    assert two["parent"] == one["run"]
    recipe = (Path(two["run"]) / "recipe.yaml").read_text()
    assert f"path: {one['run']}/model" in recipe
    assert [f["rounds"] for f in record["runs"]] == [1, 1]
    assert all(f["tokens"] > 0 and 0 <= f["pass@1"] <= 1 for f in record["runs"])
    before = next(r for r in rows(Path(two["run"])) if r["kind"] == "evaluation")
    after = [r for r in rows(Path(one["run"])) if r["kind"] == "evaluation"][-1]
    assert before["domains"]["arithmetic"]["by_prompt"] != []
    ids = [[p for p, _ in e["domains"]["arithmetic"]["by_prompt"]] for e in (before, after)]
    assert ids[0] == ids[1], "every run is measured on the same prompts"
    assert [r["stage"] for r in rows(Path(two["run"])) if r["kind"] == "step"] == ["rl", "rl"]


def test_new_data_joins_the_next_run_and_a_bad_file_stops_it(tmp_path, request_):
    folder = tmp_path / "campaigns" / "math"
    fired(tmp_path, request_)
    (folder / "data" / "extra.jsonl").write_text("".join(row(n) + "\n" for n in range(20, 25)))
    (folder / "data" / "notes.txt").write_text("no rows")
    said = []
    fire(campaign_config(name="math"), request_, trained, say=said.append, base=tmp_path)
    assert "new data: 5 rows of extra.jsonl join run 2" in said
    own = read_record(folder)["runs"][1]
    assert own["new_data"] == {"extra.jsonl": 5}
    given = (Path(own["run"]) / "data" / "train.jsonl").read_text()
    assert given.count('"new/') == 5
    assert len(given.splitlines()) == 35
    (folder / "data" / "extra.jsonl").write_text("changed afterwards: it was taken already")
    (folder / "data" / "bad.jsonl").write_text('{"id": "x", "question": "1+1="}\n')
    before = (folder / "campaign.json").read_text()
    with pytest.raises(DataError, match=r"bad\.jsonl"):
        fired(tmp_path, request_)
    assert (folder / "campaign.json").read_text() == before
    (folder / "data" / "bad.jsonl").unlink()
    assert fired(tmp_path, request_).did == "trained"
    assert read_record(folder)["runs"][2]["new_data"] == {}


def test_a_killed_run_is_continued_and_ends_as_if_never_killed(tmp_path, request_):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    fired(whole, request_)
    with pytest.raises(Broken):
        fired(broken, request_, killed_after_a_step)
    folder = broken / "campaigns" / "math"
    (folder / "data" / "late.jsonl").write_text(row(31) + "\n")
    again = fired(broken, request_)
    assert again.did == "trained"
    assert len(again.record["runs"]) == 1, "no run is added: the broken one is finished"
    assert again.record["runs"][0]["new_data"] == {}, "what came since joins the next one"
    runs = [base / "campaigns" / "math" / "runs" / "run-001" for base in (whole, broken)]
    assert fingerprint(runs[0]) == fingerprint(runs[1])


def test_one_that_died_before_it_trained_is_planned_anew(tmp_path, request_):
    def dies(request):
        raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        fired(tmp_path, request_, dies)
    folder = tmp_path / "campaigns" / "math"
    assert read_record(folder)["runs"][0]["state"] == "running"
    (folder / "data" / "late.jsonl").write_text(row(31) + "\n")
    assert fired(tmp_path, request_).record["runs"][0]["new_data"] == {"late.jsonl": 1}


def test_two_runs_never_train_at_once(tmp_path, request_):
    with locked(tmp_path / "campaigns" / "math"):
        second = fired(tmp_path, request_, None)
    assert second.did == "skipped"
    assert "another run" in second.message
    assert second.run is None


def test_one_run_replaces_all_that_were_missed(tmp_path, request_):
    long_ago = datetime.now(UTC) - timedelta(hours=5)
    replacing = fire(campaign_config(name="math"), request_, trained, long_ago, lambda t: None, tmp_path)
    missed = fire(
        campaign_config(name="math"), request_, trained, long_ago + timedelta(hours=1), lambda t: None, tmp_path
    )
    assert (replacing.did, missed.did) == ("trained", "skipped")
    assert missed.message == "skipped: run 1 started after this one was due, and replaces it"
    now = datetime.now(UTC) + timedelta(seconds=1)
    assert fire(campaign_config(name="math"), request_, trained, now, lambda t: None, tmp_path).did == "trained"


def test_the_budget_of_rounds_cuts_the_last_run_and_ends_the_campaign(tmp_path, request_):
    first = fired(tmp_path, request_, rounds=2, max_rounds=3)
    last = fired(tmp_path, request_, rounds=2, max_rounds=3)
    assert [f["rounds"] for f in last.record["runs"]] == [2, 1]
    assert first.record["over"] is None
    assert last.record["over"] == "3 rounds of max_rounds=3"
    assert fired(tmp_path, request_, None, rounds=2, max_rounds=3).did == "over"


def done(**changes):
    return {"state": "done", "rounds": 1, "tokens": 1000, "seconds": 1800.0, "pass@1": 0.5, **changes}


@pytest.mark.parametrize(
    ("limits", "rates", "reason"),
    [
        ({}, [0.5, 0.5, 0.5], None),
        ({"max_rounds": 3}, [0.5, 0.6], None),
        ({"max_rounds": 2}, [0.5, 0.6], "max_rounds=2"),
        ({"max_tokens": 2143}, [0.5, 0.6], "max_tokens=2143"),
        ({"max_tokens": 2144}, [0.5, 0.6], None),
        ({"max_hours": 1.0}, [0.5, 0.6], "max_hours=1"),
        ({"max_hours": 1.1}, [0.5, 0.6], None),
        ({"target": 0.6}, [0.5, 0.6], "target=0.6"),
        ({"target": 0.6}, [0.6, 0.5], None),
        ({"patience": 2}, [0.5, 0.4, 0.5], "patience=2"),
        ({"patience": 2}, [0.5, 0.4, 0.51], None),
        ({"patience": 2}, [0.5, 0.4], None),
        ({"patience": 1}, [None, None], None),
    ],
)
def test_limits(request_, limits, rates, reason):
    config = CampaignConfig(name="x", **limits)
    record = {"runs": [done(**{"pass@1": rate}) for rate in rates]}
    found = why_over(config, record, request_)
    assert (found is None) == (reason is None)
    assert reason is None or reason in str(found)


def test_wrong_fields_are_named(tmp_path, request_):
    with pytest.raises(ConfigError, match=r"target: .* got 1\.5"):
        campaign_config(name="x", target=1.5)
    with pytest.raises(ConfigError, match=r"campaign: .* got '\.\./y'"):
        campaign_config(name="../y")
    with pytest.raises(ConfigError, match="'tiny' has the stages sft;"):
        fired(tmp_path, request_.with_overrides("stages=[sft]"))
    with pytest.raises(ConfigError, match=r"'tiny' .*data\.evaluation"):
        fired(tmp_path, request_.with_overrides("data.evaluation=[]"), target=0.9)
