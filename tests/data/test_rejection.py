"""Which answers are kept: every reason once, in the order that is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from verizero.pipeline.config.sample import KeepConfig
from verizero.pipeline.data.rejection import REASONS, select_answers, similarity
from verizero.pipeline.types import Rollout, ScoredRollout, Verdict


def answer(
    sample: int, text: str, score: float = 1.0, cut: bool = False, status: Any = "graded", logprob: float = -1.0
) -> ScoredRollout:
    ids = tuple(range(len(text) + (not cut)))
    rollout = Rollout("p", sample, (1,), ids, (logprob,) * len(ids), text, "length" if cut else "stop", 0)
    return ScoredRollout(rollout, Verdict(status, score, "why"), None if status == "verifier_error" else score)


ALL = [
    answer(0, "the sum is 42"),
    answer(1, "42", score=0.0),
    answer(2, "so it is 42 and", cut=True),
    answer(3, "4"),
    answer(4, "a very long way to say that the answer must be 42"),
    answer(5, "the sum is 42"),
    answer(6, "The  sum is: 42"),
    answer(7, "it must be 42", status="verifier_error"),
    answer(8, "the sum is 42 then", logprob=-0.1),
    answer(9, "adding both gives 42"),
    answer(10, "nothing", status="no_answer", score=0.0),
]


def kept(**changes: Any) -> tuple[list[int], dict[str, int]]:
    found, counts = select_answers(ALL, KeepConfig(**changes))
    assert sum(counts.values()) + len(found) == len(ALL), "every answer is kept or counted"
    assert set(counts) == set(REASONS)
    return [m.rollout.sample for m in found], {k: v for k, v in counts.items() if v}


def test_each_reason_is_counted() -> None:
    samples, counts = kept(min_tokens=2, max_tokens=30, distinct="normalised", max_similarity=0.6, max_per_prompt=1)
    assert samples == [0]
    assert counts == {
        "ungraded": 1, "wrong": 2, "truncated": 1, "short": 1, "long": 1, "duplicate": 2, "similar": 1, "surplus": 1,
    }  # fmt: skip


def test_equal_texts_are_one_unless_all_are_asked_for() -> None:
    assert kept(max_per_prompt=20)[0] == [0, 3, 4, 6, 8, 9]
    assert kept(max_per_prompt=20, distinct="none")[0] == [0, 3, 4, 5, 6, 8, 9]
    assert kept(max_per_prompt=20, distinct="normalised")[0] == [0, 3, 4, 8, 9]


def test_the_preferred_ones_come_first() -> None:
    assert kept(prefer="shortest", max_per_prompt=2)[0] == [3, 0]
    assert kept(prefer="likeliest", max_per_prompt=2)[0] == [8, 0]
    assert kept(prefer="highest", min_score=0.0, max_per_prompt=2)[0] == [0, 3]
    assert kept(truncated=True, max_per_prompt=20)[0] == [0, 2, 3, 4, 6, 8, 9]


@pytest.mark.parametrize(
    ("a", "b", "wanted"), [("x y z", "x y z", 1.0), ("x y z", "x y w", 1 / 3), ("x", "y", 0.0), ("x", "x", 1.0)]
)
def test_similarity_is_of_pairs_of_words(a: str, b: str, wanted: float) -> None:
    assert similarity(a, b) == pytest.approx(wanted)
    assert similarity(b, a) == pytest.approx(wanted)
