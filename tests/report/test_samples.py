"""The choice of samples: bounded, even over the run, whole groups, nothing of a stage lost."""

import json
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.report.runs import ROLLOUT
from verizero.pipeline.report.row_types import rollout_row
from verizero.pipeline.report.samples import choose_samples, divide, shorten, spaced, verdict_name


def write(folder, stages, group_size=4, response="r"):
    rows = [
        ROLLOUT | {"stage": stage, "step": step, "prompt_id": f"p{step}", "sample": sample, "response": response}
        for stage, groups in stages.items()
        for step in range(groups)
        for sample in range(group_size)
    ]
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_small_run_is_shown_whole(tmp_path):
    chosen = choose_samples(write(tmp_path, {"rl": 10, "evaluation/a": 3}))
    assert (chosen.num_shown, chosen.num_samples, chosen.num_groups) == (52, 52, 13)
    assert [g["step"] for g in chosen.groups] == [*range(10), *range(3)]


def test_a_large_run_is_shown_evenly_in_whole_groups(tmp_path):
    chosen = choose_samples(write(tmp_path, {"rl": 900, "evaluation/a": 100, "evaluation/b": 5}), max_samples=200)
    assert chosen.num_samples == 4 * 1005
    assert chosen.num_shown == sum(len(g["samples"]) for g in chosen.groups) <= 200
    assert {len(g["samples"]) for g in chosen.groups} == {4}
    count = Counter(g["stage"] for g in chosen.groups)
    assert count["evaluation/b"] == 5
    assert abs(count["rl"] - count["evaluation/a"]) <= 1
    assert sum(count.values()) == 50
    steps = [g["step"] for g in chosen.groups if g["stage"] == "rl"]
    assert (steps[0], steps[-1]) == (0, 899)
    gaps = [b - a for a, b in pairwise(steps)]
    assert max(gaps) - min(gaps) <= 1


def test_one_group_larger_than_the_page_is_cut_to_it(tmp_path):
    chosen = choose_samples(write(tmp_path, {"rl": 2}, group_size=30), max_samples=10)
    assert (chosen.num_shown, chosen.num_samples) == (10, 60)


def test_long_answers_keep_their_ends_and_the_page_its_size(tmp_path):
    response = "begin" + "x" * 50_000 + "end"
    chosen = choose_samples(write(tmp_path, {"rl": 50}, response=response))
    shown = [s["response"] for g in chosen.groups for s in g["samples"]]
    assert all(s.startswith("begin") and s.endswith("end") and "left out" in s for s in shown)
    assert max(map(len, shown)) < 6100


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 50), max_size=6), st.integers(0, 120))
def test_a_division_gives_all_it_can_and_is_fair(needs, total):
    given_parts = divide(needs, total)
    assert sum(given_parts.values()) == min(total, sum(needs.values()))
    assert all(given_parts[n] <= needs[n] for n in needs)
    unmet = [given_parts[n] for n in needs if given_parts[n] < needs[n]]
    if unmet:
        assert max(given_parts.values()) - min(unmet) <= 1


@given(st.integers(0, 500), st.integers(0, 60))
def test_spaced_indices_are_distinct_and_ordered(count, max_samples):
    indices = spaced(count, max_samples)
    assert len(indices) == min(count, max_samples)
    assert indices == sorted(set(indices))
    assert all(0 <= i < count for i in indices)
    if min(count, max_samples) >= 2:
        assert (indices[0], indices[-1]) == (0, count - 1)


@given(st.text(max_size=300), st.integers(3, 200))
def test_shortened_text_keeps_that_many_characters(text, max_samples):
    short = shorten(text, max_samples)
    if len(text) <= max_samples:
        assert short == text
    else:
        assert short.endswith(text[-(max_samples // 3) :])
        assert text.startswith(short[: max_samples - max_samples // 3])
        assert f"{len(text) - max_samples:,} characters" in short


@pytest.mark.parametrize(
    ("status", "score", "name"),
    [("graded", 1.0, "right"), ("graded", 0.4, "partial"), ("graded", 0.0, "wrong"), ("timeout", 0.0, "timeout")],
)
def test_verdicts_are_named_for_people(status, score, name):
    assert verdict_name(rollout_row(ROLLOUT | {"status": status, "score": score}, "here")) == name
