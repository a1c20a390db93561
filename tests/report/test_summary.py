"""The summary against a plain reading of the same files, and what a round and a run show of it in short."""

import base64
import json
import re
from dataclasses import replace
from statistics import fmean
from xml.etree import ElementTree

import pytest

from tests.report.runs import read_rows, write
from tests.stages.tiny import tiny
from verizero.pipeline.errors import RunError
from verizero.pipeline.report.estimates import PromptSamples, summarize_domain
from verizero.pipeline.report.page import build_page, result_line
from verizero.pipeline.report.result import (
    MAX_ANSWERS,
    result_lines,
    result_markdown,
    round_markdown,
    round_samples,
    run_tags,
)
from verizero.pipeline.report.row_types import StepRow
from verizero.pipeline.report.summary import build_summary, count_seconds


def test_before_is_where_rl_began_and_after_is_the_last(run_dir):
    evaluations = {r["label"]: r for r in read_rows(run_dir / "metrics.jsonl") if r["kind"] == "evaluation"}
    summary = build_summary(run_dir)
    assert (summary["before_label"], summary["after_label"]) == ("after sft", "after round 3")
    for side, label in (("before", "after sft"), ("after", "after round 3")):
        for domain, measures in evaluations[label]["domains"].items():
            for name in ("pass@1", "pass@k", "maj@k", "greedy", "length", "truncated"):
                assert summary[side][domain][name] == measures[name]["value"]
                ends = [measures[name]["low"], measures[name]["high"]]
                assert summary[side][domain]["intervals"][name] == ends
            assert summary["domains"][domain][side] == summary[side][domain]
    assert json.loads((run_dir / "summary.json").read_text()) == summary


def test_the_gain_adds_up_and_its_interval_is_of_pairs(run_dir):
    summary = build_summary(run_dir)
    for row in summary["domains"].values():
        rise = row["after"]["pass@1"] - row["before"]["pass@1"]
        assert row["gain"] == pytest.approx(rise, abs=1e-5)
        assert row["sharpening"] + row["new"] == pytest.approx(rise, abs=1e-5)
        assert row["interval"][0] < rise < row["interval"][1]
    gains = [row["gain"] for row in summary["domains"].values()]
    assert summary["gain"]["total"] == pytest.approx(sum(gains) / len(gains), abs=1e-5)
    assert f"pass@1 {summary['gain']['total']:+.3f}" in summary["sharpening"]
    assert "\n" not in summary["sharpening"]


def test_seconds_and_shares_are_those_of_the_rows(run_dir):
    rows = read_rows(run_dir / "metrics.jsonl")
    summary = build_summary(run_dir)
    rl = [r["time"] for r in rows if r.get("stage") == "rl" and r["kind"] == "step"]
    assert summary["steps"] == len(rl)
    assert summary["seconds"]["rl"] == pytest.approx(sum(t["total"] for t in rl), abs=0.01)
    assert summary["seconds"]["generate"] == pytest.approx(sum(t["generate"] for t in rl), abs=0.01)
    sft = sum(r["time"]["update"] for r in rows if r["stage"] == "sft" and r["kind"] == "step")
    assert summary["seconds"]["sft"] == pytest.approx(sft, abs=0.01)
    assert summary["seconds"]["evaluate"] == pytest.approx(4.75 * sum(r["kind"] == "evaluation" for r in rows))
    assert sum(summary["shares"].values()) == pytest.approx(1, abs=1e-3)
    assert summary["distinct_prompts_seen"] == max(
        r["metrics"].get("prompts/distinct", 0) for r in rows if "metrics" in r
    )


def test_time_outside_every_phase_is_other_and_never_negative():
    row = StepRow(stage="rl", round=1, step=1, metrics={}, time={"generate": 1.0, "update": 2.0, "total": 4.0})
    assert count_seconds([row], []) == {"generate": 1, "update": 2, "other": 1, "rl": 4}
    rounded = replace(row, time={"generate": 1.0, "update": 2.0001, "total": 3.0})
    assert count_seconds([rounded], [])["other"] == 0


def test_what_tasks_take_is_a_share_of_its_own_and_shares_sum_to_one(run_dir, tmp_path):
    rows = read_rows(run_dir / "metrics.jsonl")
    steps = [r for r in rows if r["stage"] == "rl" and r["kind"] == "step"]
    before = build_summary(run_dir)
    assert "prefect" not in before["shares"]
    for row in steps:
        row["time"]["prefect"] = 0.2
        row["time"]["total"] += 0.2
    write(tmp_path / "metrics.jsonl", rows)
    after = build_summary(tmp_path)
    assert after["seconds"]["prefect"] == pytest.approx(0.2 * len(steps))
    assert after["seconds"]["other"] == pytest.approx(before["seconds"]["other"], abs=0.01)
    assert after["shares"]["prefect"] == pytest.approx(after["seconds"]["prefect"] / after["seconds"]["rl"], abs=1e-4)
    assert sum(after["shares"].values()) == pytest.approx(1, abs=1e-3)


def test_a_run_cut_short_has_a_summary(run_dir, tmp_path):
    rows = read_rows(run_dir / "metrics.jsonl")
    first_rl = next(i for i, r in enumerate(rows) if r["stage"] == "rl")
    for name, cut in (("empty", 0), ("base", 1), ("sft", 30), ("rl", first_rl + 5)):
        write(tmp_path / name / "metrics.jsonl", rows[:cut])
        summary = build_summary(tmp_path / name)
        assert summary["after"] == {}
        assert "no gain to divide" in summary["sharpening"]
        assert set(summary["before"]) == (set() if cut == 0 else {"arithmetic", "induction"})
    assert build_summary(tmp_path / "rl")["before_label"] == "after sft"
    assert build_summary(tmp_path / "base")["name"] == "base"


def test_without_rl_the_first_and_the_last_evaluation_are_compared(run_dir, tmp_path):
    write(tmp_path / "metrics.jsonl", [r for r in read_rows(run_dir / "metrics.jsonl") if r["stage"] != "rl"])
    summary = build_summary(tmp_path)
    assert (summary["before_label"], summary["after_label"]) == ("before training", "after sft")
    assert summary["shares"] == {}


def test_evaluations_of_other_prompts_are_not_paired(run_dir, tmp_path):
    rows = read_rows(run_dir / "metrics.jsonl")
    del rows[-1]["domains"]["arithmetic"]["by_prompt"][0]
    rows[-1]["domains"]["induction"]["pass@k"]["value"] = 0.0
    write(tmp_path / "metrics.jsonl", rows)
    domains = build_summary(tmp_path)["domains"]
    assert "gain" in domains["arithmetic"]
    assert "interval" not in domains["arithmetic"]
    assert "gain" in domains["induction"]
    assert "new" not in domains["induction"], "pass@k below pass@1 cannot be divided"


def _ends(rows):
    return next(i for i, r in enumerate(rows) if r.get("label") == "after sft"), len(rows) - 1


def test_a_falling_reach_is_said_without_percentages(run_dir, tmp_path):
    rows = read_rows(run_dir / "metrics.jsonl")
    for before, after in zip(*(rows[i]["domains"].values() for i in _ends(rows)), strict=True):
        before["pass@1"]["value"], before["pass@k"]["value"] = 0.4, 0.9
        after["pass@1"]["value"], after["pass@k"]["value"] = 0.6, 0.8
    write(tmp_path / "metrics.jsonl", rows)
    line = build_summary(tmp_path)["sharpening"]
    assert "%" not in line
    assert "-0.075 new" in line


def test_a_summary_that_cannot_be_written_leaves_the_old_one(run_dir, tmp_path, monkeypatch):
    write(tmp_path / "metrics.jsonl", read_rows(run_dir / "metrics.jsonl"))
    build_summary(tmp_path)
    old = (tmp_path / "summary.json").read_bytes()

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("verizero.pipeline.host.disk.os.fsync", full)
    with pytest.raises(RunError, match=r"summary\.json: the disk is full"):
        build_summary(tmp_path)
    assert (tmp_path / "summary.json").read_bytes() == old
    assert sorted(p.name for p in tmp_path.iterdir()) == ["metrics.jsonl", "summary.json"]


def evaluated(run_dir, scores, k):
    """Write a run whose verifier gave ten prompts these mean scores before and after, none of them wholly right."""
    rows = []
    for step, score in enumerate(scores):
        samples = [
            PromptSamples(
                f"p{i}", (i < 2,) * k, (None,) * k, (3,) * k, (False,) * k, i < 2, (max(score, float(i < 2)),) * k
            )
            for i in range(10)
        ]
        place = {"stage": "rl", "round": step, "step": step, "label": f"round {step}", "k": k}
        rows.append({"kind": "evaluation", **place, "domains": {"dates": summarize_domain(samples, k)}, "time": {}})
    write(run_dir / "metrics.jsonl", rows)


def test_where_credit_is_partial_the_mean_score_stands_next_to_pass_1(tmp_path):
    evaluated(tmp_path, (0.1, 0.8), 4)
    summary = build_summary(tmp_path)
    dates = summary["domains"]["dates"]
    assert (dates["before"]["score"], dates["after"]["score"]) == pytest.approx((0.28, 0.84))
    assert dates["score_gain"] == pytest.approx(0.56)
    assert dates["score_interval"][0] < 0.56 < dates["score_interval"][1]
    assert "mean score +0.560 (0.280 → 0.840) on dates" in summary["sharpening"]
    assert result_line(summary) == "Held-out pass@1 0.20 → 0.20 on dates (mean score 0.28 → 0.84) (round 0 → round 1)"
    page = build_page(tmp_path).read_text()
    assert "mean score</th><td>0.280" in page
    assert any("mean score 0.280 -> 0.840" in line for line in result_lines(summary))
    table = result_markdown(summary, tmp_path)
    assert "| dates | 0.200 → 0.200 | 0.280 → 0.840 |" in table
    assert "reward" not in table


@pytest.mark.parametrize("is_older", [False, True])
def test_with_one_sample_nothing_is_called_new_and_pass_1_stands_there_once(tmp_path, is_older):
    evaluated(tmp_path, (0.0, 1.0), 1)
    if is_older:  # such rows have pass@k and maj@k of one sample
        rows = read_rows(tmp_path / "metrics.jsonl")
        for row in rows:
            row["domains"]["dates"] |= dict.fromkeys(("pass@k", "maj@k"), row["domains"]["dates"]["pass@1"])
        write(tmp_path / "metrics.jsonl", rows)
    summary = build_summary(tmp_path)
    dates = summary["domains"]["dates"]
    assert "gain" in dates
    assert "interval" in dates
    assert not {"new", "sharpening"} & (dates.keys() | summary["gain"].keys())
    assert "evaluation.k above 1" in summary["sharpening"]
    assert "%" not in summary["sharpening"]
    page = build_page(tmp_path).read_text()
    assert page.count("pass@1</th>") == 1
    for text in (page, "".join(result_lines(summary)), result_markdown(summary, tmp_path)):
        assert "maj@1" not in text
        assert "sharpening," not in text


def test_the_result_has_both_measures_where_domains_differ():
    def side(**measures):
        return {**measures, "intervals": {}}

    summary = {
        "before_label": "before training", "after_label": "round 1", "after": {"sums": {}, "notes": {}}, "k": 1,
        "domains": {
            "sums": {"before": side(**{"pass@1": 0.2}), "after": side(**{"pass@1": 0.6})},
            "notes": {"before": side(reward=-1.5), "after": side(reward=2.25)},
        },
    }  # fmt: skip
    line = "Held-out pass@1 0.20 → 0.60 on sums; mean reward -1.500 → 2.250 on notes (before training → round 1)"
    assert result_line(summary) == line


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
    write(tmp_path / "metrics.jsonl", [*rows, alarm, *more])
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
