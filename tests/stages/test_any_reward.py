"""Runs whose rewards are any numbers, by functions of a user's file: what is trained, measured and said."""

import json

import pytest

from tests.stages.start import ONLY_RL, start
from tests.stages.test_stale import rows
from tests.stages.tiny import tiny
from verizero.pipeline.errors import GradersFailed
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.report.result import result_lines
from verizero.pipeline.report.run_files import read_run
from verizero.pipeline.whole_run import train

ROUND = ["rl.rounds=1", "rl.steps_per_round=2", "rl.select.keep=all", "scoring.truncated=null"]
FILE = """
def length(completion):
    return len(completion) / 2 - 3

def odd(completion):
    return None if len(completion) % 2 else 4

def never(completion):
    return None
"""


def run(folder, function):
    """The summary of a run that is rewarded by a function of FILE, and the metrics of its RL steps."""
    rows(folder)
    (folder / "r.py").write_text(FILE)
    source = {"verifier": {"path": f"r.py:{function}"}, "file": "rows.jsonl"}
    data = {"train": [source], "evaluation": [source], "on_overlap": "report"}
    summary = train(tiny({"data": data}, [start(), *ONLY_RL, *ROUND]), folder, folder / "run", "auto", Progress())
    return summary, [dict(row.metrics) for row in read_run(folder / "run").steps]


@pytest.mark.run
def test_rewards_outside_of_0_to_1_are_trained_on_and_have_a_mean_and_no_pass_at_1(tmp_path):
    summary, steps = run(tmp_path, "length")
    responses = [json.loads(line) for line in (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()]
    trained = [r for r in responses if r["stage"] == "rl"]
    assert trained
    assert all(r["reward"] == len(r["response"]) / 2 - 3 for r in trained)
    assert any(r["reward"] < 0 for r in trained) or any(r["reward"] > 1 for r in trained)
    assert len(steps) == 2
    side = summary["after"]["default"]
    assert "pass@1" not in side
    assert side["intervals"]["reward"][0] <= side["reward"] <= side["intervals"]["reward"][1]
    lines = result_lines(summary)
    assert lines[0].split() == ["default", "reward", f"{summary['before']['default']['reward']:.3f}", "->",
                                f"{side['reward']:.3f}"]  # fmt: skip
    assert "nothing says from which reward on a response is right" in lines[1]
    assert "Held-out mean reward" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.run
@pytest.mark.usefixtures("pageless")
def test_a_response_without_a_reward_leaves_its_group_without_an_alarm(tmp_path):
    _, steps = run(tmp_path, "odd")
    responses = [json.loads(line) for line in (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()]
    left_out = [r for r in responses if r["stage"] == "rl" and r["status"] == "abstained"]
    assert left_out
    assert {r["reward"] for r in left_out} == {None}
    assert not read_run(tmp_path / "run").alarms
    assert sum(line["verdict/abstained"] * line["verdict/responses"] for line in steps) >= len(left_out)


@pytest.mark.run
def test_where_no_response_has_a_reward_the_run_says_so(tmp_path):
    with pytest.raises(GradersFailed, match=r"the reward function returned None for all .* responses"):
        run(tmp_path, "never")
