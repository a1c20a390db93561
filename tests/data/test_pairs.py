"""Pairs from files and from graded responses: what is read, what is left out and counted, what is refused."""

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verizero.pipeline.config.pairs import PairingConfig, PairSource
from verizero.pipeline.data.pairs import Pair, PairsRead, check_pieces, check_verdicts, pairs_of, read_pairs
from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Group, Prompt, Rollout, ScoredRollout, Verdict


def read(tmp_path, rows, **source):
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    return read_pairs((PairSource(file="pairs.jsonl", **source),), 0, tmp_path)


def sides(found):
    return [(p.prompt.question, p.chosen, p.rejected) for p in found.pairs]


USER = {"role": "user", "content": "1+1="}
SYSTEM = {"role": "system", "content": "Add."}


def said(text):
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "1+1=", "chosen": "2", "rejected": "3"},
        {"question": "1+1=", "chosen": "2", "rejected": "3"},
        {"prompt": [USER], "chosen": [said("2")], "rejected": [said("3")]},
        {"prompt": "1+1=", "chosen": [said("2")], "rejected": [said("3")]},
        {"chosen": [USER, said("2")], "rejected": [USER, said("3")]},
        {"prompt": [USER], "chosen": [USER, said("2")], "rejected": [USER, said("3")]},
        {
            "prompt": "1+1=",
            "chosen": [{"from": "gpt", "value": "2"}],
            "rejected": [said([{"type": "text", "text": "3"}])],
        },
    ],
)
def test_every_form_of_a_pair_is_the_same_pair(tmp_path, row):
    found = read(tmp_path, [row])
    assert sides(found) == [("1+1=", "2", "3")]
    assert found.pairs[0].id == "pairs.jsonl/1"
    assert found.left_out == []


def test_thinking_is_a_part_of_a_side_and_context_of_the_prompt(tmp_path):
    chosen = [{**said("2"), "reasoning_content": "Add."}]
    row = {"prompt": "Add", "input": "1, 1", "chosen": chosen, "rejected": float("nan")}
    assert sides(read(tmp_path, [{**row, "rejected": "3"}], mapping={"context": ["input"]})) == [
        ("Add\n\n1, 1", "<think>Add.</think>2", "3")
    ]
    left = read(tmp_path, [{**row, "rejected": "3"}, row, {**row, "rejected": [said(None)]}], mapping={"context": []})
    assert left.counts[0].skipped == {"with an empty side": 2}


def test_a_system_message_stays_with_its_prompt(tmp_path):
    rows = [
        {"chosen": [SYSTEM, USER, said("2")], "rejected": [SYSTEM, USER, said("3")]},
        {"prompt": "1+1=", "system": "Add.", "chosen": "2", "rejected": "3"},
    ]
    assert [p.prompt.system for p in read(tmp_path, rows).pairs] == ["Add.", "Add."]


def test_labelled_rows_and_mapped_columns(tmp_path):
    rows = [
        {"x": "1+1=", "y": "2", "good": True, "gold": "2", "id": "a"},
        {"x": "1+2=", "y": "2", "good": 0, "gold": "3", "id": "b"},
    ]
    mapping = {"prompt": "x", "completion": "y", "label": "good", "answer": "gold"}
    found = read(tmp_path, rows, mapping=mapping, verifier="exact", domain="sums")
    assert sides(found) == [("1+1=", "2", None), ("1+2=", None, "2")]
    assert [(p.id, p.prompt.verifier, p.prompt.reference, p.prompt.domain) for p in found.pairs] == [
        ("a", "exact", "2", "sums"),
        ("b", "exact", "3", "sums"),
    ]


def test_empty_and_equal_sides_are_left_out_counted_and_kept_for_people(tmp_path):
    good = {"prompt": "1+1=", "chosen": "2", "rejected": "3"}
    rows = [
        good,
        {"prompt": "q", "chosen": " ", "rejected": "3"},
        {"prompt": "q", "chosen": "2", "rejected": None},
        {"prompt": "q", "chosen": "2", "rejected": []},
        {"prompt": "q", "chosen": "2", "rejected": "2"},
    ]
    found = read(tmp_path, rows)
    assert len(found.pairs) == 1
    (counts,) = found.counts
    assert counts.skipped == {"with an empty side": 3, "with equal sides": 1}
    assert counts.examples["with equal sides"] == "pairs.jsonl line 5"
    assert "1 pairs of 5 rows read" in str(counts)
    assert [row for row, _ in found.left_out] == rows[1:]


def test_a_source_of_which_nothing_is_left_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"pairs\.jsonl"):
        read(tmp_path, [{"prompt": "q", "chosen": "2", "rejected": "2"}])


def test_limit_and_shuffle_are_by_the_seed(tmp_path):
    rows = [{"prompt": f"{i}", "chosen": "2", "rejected": "3"} for i in range(20)]
    assert [q for q, _, _ in sides(read(tmp_path, rows, limit=3))] == ["0", "1", "2"]
    first = sides(read(tmp_path, rows, shuffle=True, limit=5))
    assert first == sides(read(tmp_path, rows, shuffle=True, limit=5))
    assert [q for q, _, _ in first] != [str(i) for i in range(5)]


def exact(asked):
    """Right where the response is the reference; the grader fails on "?"."""
    return [
        Verdict("verifier_error") if text == "?" else Verdict("graded", float(text == prompt.reference))
        for prompt, text in asked
    ]


GRADED = [("a", "2", "3"), ("b", "3", "2"), ("c", "4", "5"), ("d", "?", "2"), ("e", "3", None), ("f", None, "3")]


def graded():
    pairs = [Pair(i, Prompt(i, "1+1=", "exact", "2"), w, r) for i, w, r in GRADED]
    return PairsRead([*pairs, Pair("g", Prompt("g", "?", "", None), "x", "y")])


@pytest.mark.parametrize(
    ("on_wrong", "left", "skipped"),
    [
        ("keep", [("a", "2"), ("b", "3"), ("c", "4"), ("d", "?"), ("e", "3"), ("f", None), ("g", "x")], {"kept": 3}),
        ("drop", [("a", "2"), ("d", "?"), ("f", None), ("g", "x")], {"dropped": 3}),
    ],
)
def test_a_chosen_side_that_the_verifier_calls_wrong(on_wrong, left, skipped):
    found = graded()
    check_verdicts(found, exact, on_wrong)
    assert [(p.id, p.chosen) for p in found.pairs] == left
    (counts,) = found.counts
    wanted = {f"wrong by the verifier, {fate}": n for fate, n in skipped.items()}
    assert counts.skipped == wanted | {"grader failed, kept": 1}
    assert len(found.left_out) == 7 - len(left)


def test_all_chosen_sides_wrong_is_refused():
    found = PairsRead([Pair("b", Prompt("b", "1+1=", "exact", "2"), "3", "4")])
    with pytest.raises(DataError, match="on_wrong_chosen"):
        check_verdicts(found, exact, "drop")


def member(i, reward, length, confidence, same=None):
    ids = tuple([100 + (i if same is None else same)] * length)
    rollout = Rollout("p", i, (1,), ids, (confidence,) * length, "", "stop", 0)
    return ScoredRollout(rollout, Verdict("graded", reward or 0.0), reward)


def group(*members):
    return Group(Prompt("p", "?", "exact", "x"), members)


def samples(found):
    return [(w.rollout.sample, r.rollout.sample) for w, r in found]


def test_responses_of_equal_tokens_count_once():
    twice = group(member(0, 1.0, 3, -0.1), member(1, 0.0, 3, -0.1, same=7), member(2, 0.0, 3, -0.1, same=7))
    assert len(pairs_of(twice, PairingConfig(per_prompt=2), Random(0))) == 1
    liar = group(member(0, 1.0, 3, -0.1, same=7), member(1, 0.0, 3, -0.1, same=7))
    assert pairs_of(liar, PairingConfig(), Random(0)) == [], "a grader that is not sure makes no pair of equal sides"


def test_reused_pairs_are_drawn_from_all_of_a_prompt():
    whole = group(*(member(i, float(i < 4), 3, -0.1) for i in range(8)))
    how = PairingConfig(per_prompt=4, reuse=True)
    drawn = [samples(pairs_of(whole, how, Random(seed))) for seed in range(40)]
    assert any(len({w for w, _ in pairs}) < 4 for pairs in drawn)
    assert {pair for pairs in drawn for pair in pairs} == {(w, r) for w in range(4) for r in range(4, 8)}


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.5, 0.7, 1.0, None]), st.integers(1, 9)), max_size=9),
    st.integers(1, 4),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from([0.1, 0.5]),
)
def test_pairs_hold_what_is_said_of_them(rows, most, seed, reuse, min_gap):
    whole = group(*(member(i, r, n, -0.1 * (i + 1)) for i, (r, n) in enumerate(rows)))
    how = PairingConfig(per_prompt=most, reuse=reuse, min_gap=min_gap)
    found = pairs_of(whole, how, Random(seed))
    better, worse = (
        {i for i, (r, _) in enumerate(rows) if r is not None and good(r)}
        for good in (lambda r: r == max(whole.rewards), lambda r: r <= max(whole.rewards) - how.min_gap)
    )
    able = len(better) * len(worse) if reuse else min(len(better), len(worse))
    assert len(set(samples(found))) == len(found) == min(most, able)
    used = [i for pair in samples(found) for i in pair]
    assert reuse or len(used) == len(set(used))
    for w, r in found:
        assert w.reward == max(whole.rewards)
        assert w.reward - r.reward >= how.min_gap
    assert samples(found) == samples(pairs_of(whole, how, Random(seed)))


LISTS = {"prompt": "2+2?", "completions": ["Let x be 2+2.", "So x=5."], "labels": [True, False]}


def read_steps_of(folder, row, **source):
    (folder / "steps.jsonl").write_text(json.dumps(row) + "\n")
    (pair,) = read_pairs((PairSource(file="steps.jsonl", **source),), 0, folder).pairs
    return pair


@pytest.mark.parametrize(
    ("row", "source", "response", "steps"),
    [
        (LISTS, {}, "Let x be 2+2.\nSo x=5.", [("Let x be 2+2.", 1.0), ("So x=5.", 0.0)]),
        ({**LISTS, "labels": [1, 0]}, {}, "Let x be 2+2.\nSo x=5.", [("Let x be 2+2.", 1.0), ("So x=5.", 0.0)]),
        (
            {**LISTS, "labels": [None, "-"]},
            {"step_separator": " ## "},
            "Let x be 2+2. ## So x=5.",
            [("So x=5.", 0.0)],
        ),
    ],
)
def test_steps_and_labels_are_read(row, source, response, steps, tmp_path):
    pair = read_steps_of(tmp_path, row, **source)
    assert (pair.prompt.question, pair.chosen, pair.rejected) == ("2+2?", response, None)
    assert list(pair.labelled_steps or ()) == steps


def test_a_verifier_does_not_grade_what_has_labels(tmp_path):
    assert read_steps_of(tmp_path, {**LISTS, "answer": "4", "verifier": "exact"}).prompt.verifier == ""


def test_two_labelled_steps_in_one_piece_are_refused():
    steps = [("a", 1.0), ("b", 0.0)]
    check_pieces("r", "a\nb", steps, "\n")
    check_pieces("r", "a\nmore\nb", steps, "\n")
    with pytest.raises(
        DataError, match=r"row 'r': labelled steps 1 and 2 are one piece, as reward_model\.step_end=';'"
    ):
        check_pieces("r", "a\nb", steps, ";")
