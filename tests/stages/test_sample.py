"""Rejection sampling: which answers are kept, what the stage leaves, and that SFT continues with it after any break."""

import json
from collections import Counter
from zlib import crc32

import pytest

from tests.json_server import serving
from tests.stages.broken import run
from tests.stages.marks import MARKED
from tests.stages.start import started
from tests.stages.tiny import tiny
from verizero.pipeline.config.sample import KeepConfig
from verizero.pipeline.data.prompts import answer_of
from verizero.pipeline.errors import DataError, EngineError
from verizero.pipeline.host.disk import read_jsonl
from verizero.pipeline.stages import sample
from verizero.pipeline.stages.sample import REASONS, select_answers
from verizero.pipeline.types import Prompt, Rollout, ScoredRollout, Verdict


def recipe(changes=None, stages=None):
    again = {"name": "again", "kind": "sft", "with": {"steps": 3, "demonstrations": "sample"}}
    return tiny(
        {
            "stages": ["sft", "sample", again] if stages is None else stages,
            "rl": None,
            "sample": {"samples": 6, "keep": {"max_per_prompt": 2}, **(changes or {})},
        },
        started() if "endpoint" in (changes or {}) else (*started(), MARKED),
    )


@pytest.mark.run
def test_what_is_kept_is_right_and_says_where_it_comes_from(tmp_path, monkeypatch):
    monkeypatch.setattr(sample, "SAMPLED_AT_ONCE", 12)
    run(recipe(), tmp_path / "whole")
    left = read_jsonl(tmp_path / "whole" / "stages" / "sample" / "demonstrations.jsonl")
    assert left
    asked = {row["id"]: row for row in read_jsonl(tmp_path / "whole" / "data" / "train.jsonl")}
    per_prompt = Counter(row["id"].split("/sample/")[0] for row in left)
    assert set(per_prompt) <= set(asked)
    assert max(per_prompt.values()) <= 2
    for row in left:
        assert crc32(row["demonstration"].encode()) % 2 == 1
        assert row["source"]["model"] == "policy"
        assert row["source"]["verdict"]["score"] == 1.0
        assert row["source"]["policy_version"] > 0
        assert row["source"]["hinted"] is False
    pieces = [r for r in read_jsonl(tmp_path / "whole" / "metrics.jsonl") if r["kind"] == "sample"]
    assert [r["metrics"]["prompts"] for r in pieces] == [12, 12, 6]
    assert sum(r["metrics"]["responses"] for r in pieces) == 30 * 6
    assert sum(r["metrics"]["kept"] for r in pieces) == len(left)


@pytest.mark.run
def test_hints_find_answers_that_stand_under_the_plain_question(tmp_path):
    hint = {"samples": 2, "prompts": 20, "hint": "{answer} {question}", "keep": {}}
    run(recipe(hint, ["sft", "sample"]), tmp_path)
    (row,) = [r["metrics"] for r in read_jsonl(tmp_path / "metrics.jsonl") if r["kind"] == "sample"]
    assert row["prompts"] == 20
    assert row["responses"] == 40 + 2 * (20 - row["solved"])
    left = read_jsonl(tmp_path / "stages" / "sample" / "demonstrations.jsonl")
    asked = {r["id"]: r["question"] for r in read_jsonl(tmp_path / "data" / "train.jsonl")}
    assert all(r["question"] == asked[r["id"].split("/sample/")[0]] for r in left)
    assert len({r["id"].split("/sample/")[0] for r in left if r["source"]["hinted"]}) == row["solved_with_hint"]


@pytest.mark.parametrize(
    ("reference", "said"),
    [("48", "48"), (48, "48"), ({"answer": "B", "choices": ["x", "y"]}, "B"), ({"tests": [[1, 2]]}, None), ([1], None)],
    ids=["text", "number", "choice", "tests", "list"],
)
def test_a_hint_says_texts_and_numbers_and_no_tests(reference, said):
    assert answer_of(Prompt(id="p", question="?", verifier="math", reference=reference, domain="d")) == said


@pytest.mark.run
def test_a_stage_that_keeps_nothing_says_so(tmp_path):
    with pytest.raises(DataError, match=r"sample: no answer was kept.*sample\.samples"):
        run(tiny({"stages": ["sample"], "rl": None, "sample": {"samples": 2, "prompts": 3}}), tmp_path)


@pytest.mark.run
def test_an_endpoint_is_a_source_too(tmp_path):
    asked = []

    def teach(path, content, key):
        """Answer sums rightly for even seeds, wrongly for odd ones, and at times in characters nobody knows."""
        asked.append(body := json.loads(content))
        a, b = body["messages"][-1]["content"].rstrip("=").split("+")
        text = f"\\boxed{{{int(a) + int(b) + body['seed'] % 2}}}" + ("\u2603" if body["seed"] % 8 == 0 else "")
        return 200, {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}

    with serving(teach) as address:
        endpoint = {"url": f"{address}/v1", "model": "big"}
        run(recipe({"endpoint": endpoint, "prompts": 10, "samples": 8}, ["sample"]), tmp_path)
    assert len(asked) == 80
    assert {b["model"] for b in asked} == {"big"}
    left = read_jsonl(tmp_path / "stages" / "sample" / "demonstrations.jsonl")
    assert left
    for row in left:
        a, b = row["question"].rstrip("=").split("+")
        assert row["demonstration"] == f"\\boxed{{{int(a) + int(b)}}}"
        assert row["source"]["model"] == "big"
        assert row["source"]["policy_version"] is None
    (seen,) = [r["metrics"] for r in read_jsonl(tmp_path / "metrics.jsonl") if r["kind"] == "sample"]
    odd = sum(b["seed"] % 2 for b in asked)
    unwritable = sum(b["seed"] % 8 == 0 for b in asked)
    assert (seen["wrong"], seen["unwritable"]) == (odd, unwritable)
    assert seen["responses"] == 80 - unwritable


@pytest.mark.run
def test_an_endpoint_that_is_not_there_is_named(tmp_path):
    silent = {"url": "http://127.0.0.1:9/v1", "model": "big", "retries": 0}
    with pytest.raises(EngineError, match=r"endpoint at http://127.0.0.1:9/v1 failed"):
        run(recipe({"endpoint": silent, "prompts": 2}, ["sample"]), tmp_path)


def answer(sample, text, score=1.0, cut=False, status="graded"):
    ids = tuple(range(len(text) + (not cut)))
    rollout = Rollout("p", sample, (1,), ids, (-1.0,) * len(ids), text, "length" if cut else "stop", 0)
    return ScoredRollout(rollout, Verdict(status, score, "why"), None if status == "verifier_error" else score)


ALL = [
    answer(0, "the sum is 42"),
    answer(1, "42", score=0.0),
    answer(2, "so it is 42 and", cut=True),
    answer(3, " \n"),
    answer(4, "a very long way to say that the answer must be 42"),
    answer(5, "the sum is 42"),
    answer(6, "The  sum is: 42"),
    answer(7, "it must be 42", status="verifier_error"),
    answer(8, "the sum is 42 then"),
    answer(9, "adding both gives 42"),
    answer(10, "nothing", status="no_answer", score=0.0),
]


def kept(**changes):
    found, counts = select_answers(ALL, KeepConfig(**changes))
    assert sum(counts.values()) + len(found) == len(ALL), "every answer is kept or counted"
    assert set(counts) == set(REASONS)
    return [m.rollout.sample for m in found], {k: v for k, v in counts.items() if v}


def test_which_answers_are_kept_and_why_others_are_not():
    samples, counts = kept(distinct="normalised", max_per_prompt=1)
    assert samples == [0]
    assert counts == {"ungraded": 1, "wrong": 2, "truncated": 1, "empty": 1, "duplicate": 2, "surplus": 3}
    assert kept(max_per_prompt=20)[0] == [0, 4, 6, 8, 9], "equal texts are one"
    assert kept(max_per_prompt=20, distinct="normalised")[0] == [0, 4, 8, 9]
    assert kept(min_score=0.0, max_per_prompt=2)[0] == [0, 4]
    assert kept(min_score=0.0, max_per_prompt=20)[0] == [0, 4, 6, 8, 9, 1], "the highest scores come first"
    assert kept(truncated=True, max_per_prompt=20)[0] == [0, 2, 4, 6, 8, 9]
