"""Which answers are kept: every reason once, in the order that is asked for."""

from typing import Any

from verizero.pipeline.config.sample import KeepConfig
from verizero.pipeline.stages.sample import REASONS, select_answers
from verizero.pipeline.types import Rollout, ScoredRollout, Verdict


def answer(sample: int, text: str, score: float = 1.0, cut: bool = False, status: Any = "graded") -> ScoredRollout:
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


def kept(**changes: Any) -> tuple[list[int], dict[str, int]]:
    found, counts = select_answers(ALL, KeepConfig(**changes))
    assert sum(counts.values()) + len(found) == len(ALL), "every answer is kept or counted"
    assert set(counts) == set(REASONS)
    return [m.rollout.sample for m in found], {k: v for k, v in counts.items() if v}


def test_each_reason_is_counted():
    samples, counts = kept(distinct="normalised", max_per_prompt=1)
    assert samples == [0]
    assert counts == {"ungraded": 1, "wrong": 2, "truncated": 1, "empty": 1, "duplicate": 2, "surplus": 3}


def test_equal_texts_are_one():
    assert kept(max_per_prompt=20)[0] == [0, 4, 6, 8, 9]
    assert kept(max_per_prompt=20, distinct="normalised")[0] == [0, 4, 8, 9]


def test_the_highest_scores_come_first():
    assert kept(min_score=0.0, max_per_prompt=2)[0] == [0, 4]
    assert kept(min_score=0.0, max_per_prompt=20)[0] == [0, 4, 6, 8, 9, 1]
    assert kept(truncated=True, max_per_prompt=20)[0] == [0, 2, 4, 6, 8, 9]
