"""What a round shows in short: pictures that need no other file, a table that adds up, answers of that round only."""

import base64
import json
import re
from statistics import fmean
from xml.etree import ElementTree

import pytest

from tests.report.runs import make_run, read_rows
from tests.stages.tiny import tiny
from verizero.pipeline.report.result import MAX_ANSWERS, round_markdown, round_samples, run_tags


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("round") / "demo")


@pytest.mark.run
def test_its_pictures_are_whole_in_themselves(run_dir):
    text = round_markdown(run_dir)
    pictures = re.findall(r"!\[([^\]]+)\]\(data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)\)", text)
    assert {"Reward", "Held-out pass@1"} <= {title for title, _ in pictures}
    for _, code in pictures:
        svg = base64.b64decode(code).decode()
        assert ElementTree.fromstring(svg).tag.endswith("svg")
        assert not re.search(r"https?://(?!www\.w3\.org/)", svg)
        assert "var(--series-1)" not in svg  # without a page around it there are no variables: each has a fallback
    assert "<svg" not in text
    assert str(run_dir.resolve() / "report.html") in text


def test_its_table_has_a_line_for_each_round(run_dir):
    steps = [r for r in read_rows(run_dir / "metrics.jsonl") if r["kind"] == "step" and r["stage"] == "rl"]
    lines = [line for line in round_markdown(run_dir).splitlines() if re.match(r"\| \d+ \|", line)]
    assert [line.split("|")[2].strip() for line in lines] == ["20", "20", "20"]
    second = fmean(r["metrics"]["reward/sampled"] for r in steps if r["round"] == 2)
    assert lines[1].split("|")[3].strip() == f"{second:.3g}"
    after = {e["round"]: e for e in read_rows(run_dir / "metrics.jsonl") if e["kind"] == "evaluation"}
    rates = [fmean(d["pass@1"]["value"] for d in after[r]["domains"].values()) for r in (1, 2, 3)]
    assert [line.split("|")[7].strip() for line in lines] == [f"{rate:.3f}" for rate in rates]


def test_rounds_of_two_stages_are_apart_and_alarms_come_first(run_dir, tmp_path):
    rows = read_rows(run_dir / "metrics.jsonl")
    more = [{**r, "stage": "rl_again", "stage_kind": "rl"} for r in rows if r["stage"] == "rl" and r.get("round") == 1]
    sign = {"measure": "KL", "value": 2.0, "limit": 1.0, "said": "KL rose to 2 (guard.limits.max_kl: 1)"}
    alarm = {"kind": "alarm", "alarm": "collapse", "stage": "rl", "round": 3, "step": 60, "action": "warn"}
    alarm["signs"] = [sign]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in [*rows, alarm, *more]))
    text = round_markdown(tmp_path)
    assert text.startswith(
        "**Alarm.** rl step 60: RL may be collapsing: KL rose to 2 (guard.limits.max_kl: 1). The run went on"
    )
    names = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")][2:]
    assert names == ["1", "2", "3", "rl_again 1"]


def test_answers_are_those_of_the_stage_and_round(run_dir):
    rows = read_rows(run_dir / "rollouts.jsonl")
    own = [r for r in rows if r["stage"] == "rl" and r["round"] == 2][-MAX_ANSWERS:]
    found = round_samples(run_dir, "rl", 2)
    assert [(f["step"], f["response"], f["verdict"], f["reason"]) for f in found] == [
        (r["step"], r["response"], r["status"], r["reason"]) for r in own
    ]
    assert len(found) == MAX_ANSWERS
    assert round_samples(run_dir, "rl_again", 2) == []


def test_runs_are_found_by_name_model_and_algorithms():
    assert run_tags(tiny()) == ["tiny", "qwen2", "grpo"]
    again = {"name": "rl_again", "kind": "rl", "with": {"algorithm": {"name": "dapo"}}}
    assert run_tags(tiny({"stages": ["sft", "rl", again]})) == ["tiny", "qwen2", "grpo", "dapo"]
    with_path = tiny({"model": {"create": None, "path": "Qwen/Qwen3-0.6B"}, "stages": ["sft"]})
    assert run_tags(with_path) == ["tiny", "Qwen3-0.6B"]
