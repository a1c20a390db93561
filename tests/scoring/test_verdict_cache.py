"""Verdicts of answers that come again: which are known, and which are asked for every time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from verizero.pipeline.config.scoring import ScoringConfig
from verizero.pipeline.scoring import verdict_cache
from verizero.pipeline.scoring.purity import is_pure
from verizero.pipeline.scoring.score import Scorer
from verizero.pipeline.scoring.verdict_cache import VerdictCache
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.base import load


class Counting:
    """Says how often each response was asked for, with a status of its own choice."""

    def __init__(self, status: str = "graded") -> None:
        self.status, self.asked = status, []  # type: ignore[var-annotated]

    def __call__(self, key: str, attempts: Sequence[Attempt]) -> list[Verdict]:
        self.asked += [(key, a.response) for a in attempts]
        return [Verdict(self.status, 1.0, a.response, seconds=2.0) for a in attempts]  # type: ignore[arg-type]


def attempt(text: str, reference: object = "4", **more: object) -> Attempt:
    return Attempt(text, reference, **more)  # type: ignore[arg-type]


def test_what_was_graded_once_is_known_and_took_no_time_again():
    known, ask = VerdictCache(), Counting()
    first = known.fill("math", [attempt("a"), attempt("b")], ask)
    again = known.fill("math", [attempt("b"), attempt("c"), attempt("a")], ask)
    assert ask.asked == [("math", "a"), ("math", "b"), ("math", "c")]
    assert [v.reason for v in again] == ["b", "c", "a"]
    assert [v.seconds for v in again] == [0.0, 2.0, 0.0]
    assert (again[2].status, again[2].score) == (first[0].status, first[0].score)


@pytest.mark.parametrize(
    "other",
    [
        attempt("a", "5"),
        attempt("a", 4),
        attempt("a", prompt="another"),
        attempt("a", truncated=True),
        attempt("a "),
    ],
)
def test_an_attempt_that_differs_in_anything_is_another(other: Attempt):
    known, ask = VerdictCache(), Counting()
    known.fill("math", [attempt("a")], ask)
    known.fill("math", [other], ask)
    assert len(ask.asked) == 2


def test_references_that_are_equal_but_not_the_same_are_told_apart():
    known, ask = VerdictCache(), Counting()
    for reference in (1, 1.0, True, {"tests": [1]}, {"tests": [True]}):
        known.fill("exact", [attempt("1", reference)], ask)
    assert len(ask.asked) == 5
    known.fill("exact", [attempt("1", {"tests": [True]})], ask)
    assert len(ask.asked) == 5


def test_a_key_has_verdicts_of_its_own():
    known, ask = VerdictCache(), Counting()
    known.fill("math", [attempt("a")], ask)
    known.fill("exact", [attempt("a")], ask)
    assert ask.asked == [("math", "a"), ("exact", "a")]


@pytest.mark.parametrize("status", ["timeout", "verifier_error", "sandbox_error"])
def test_what_may_be_the_machines_is_tried_again(status: str):
    known, ask = VerdictCache(), Counting(status)
    known.fill("code", [attempt("a")], ask)
    known.fill("code", [attempt("a")], ask)
    assert len(ask.asked) == 2


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(verdict_cache, "MAX_VERDICTS", 3)
    known, ask = VerdictCache(), Counting()
    known.fill("math", [attempt(c) for c in "abc"], ask)
    known.fill("math", [attempt("a")], ask)  # now the one asked for last
    known.fill("math", [attempt("d")], ask)
    known.fill("math", [attempt("a"), attempt("b")], ask)
    assert [text for _, text in ask.asked] == ["a", "b", "c", "d", "b"]
    long = attempt("x" * (verdict_cache.MAX_CHARACTERS + 1))
    known.fill("math", [long, long], ask)
    known.fill("math", [long], ask)
    assert len(ask.asked) == 8


OWN_FILE = """
from verizero.verifiers.base import VerifierParams, verifier

class Nothing(VerifierParams):
    pass

@verifier
def coin(attempt, params: Nothing) -> float:
    return 1.0
"""


def test_only_our_own_graders_without_state_are_pure(tmp_path: Path):
    (tmp_path / "coin.py").write_text(OWN_FILE)
    mine = load(path=f"{tmp_path}/coin.py:coin")
    assert is_pure(load("math").bind())
    assert is_pure(load("code").bind())
    assert is_pure(load("combine").bind({"parts": [{"name": "math"}, {"name": "format"}]}))
    assert not is_pure(mine.bind())
    assert not is_pure(load("judge").bind({"url": "http://127.0.0.1:1/v1", "model": "m", "rubric": "r"}))
    assert not is_pure(load("combine").bind({"parts": [{"name": "math"}, {"path": f"{tmp_path}/coin.py:coin"}]}))
    assert not is_pure(object())


def test_a_scorer_asks_a_pure_grader_once_and_any_other_every_time():
    class Mine:
        def __init__(self) -> None:
            self.asked = 0

        def score(self, attempts: Sequence[Attempt]) -> list[Verdict]:
            self.asked += len(attempts)
            return [Verdict("graded", 1.0)] * len(attempts)

    mine, ours = Mine(), load("exact").bind()
    scorer = Scorer(ScoringConfig(), {"mine": mine, "exact": ours})
    for _ in range(2):
        found = scorer.verdicts(["mine", "exact", "exact"], [attempt("4"), attempt("4"), attempt("5")])
    assert mine.asked == 2
    assert [v.score for v in found] == [1.0, 1.0, 0.0]
    assert scorer.cache.fill("exact", [attempt("4")], Counting())[0].reason != "4"
    scorer.close()
