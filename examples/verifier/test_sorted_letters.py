"""Answers that sorted_letters must accept, and answers that it must refuse."""

from pathlib import Path

import pytest

from verizero.pipeline.commands.verifiers.proof import check
from verizero.verifiers.base import Attempt, load

HERE = Path(__file__).parent
ACCEPTED = [(r"\boxed{abcd}", "dcba"), ("<think>b?</think>Answer: abc", "cab"), ("ABC", "bca")]
REFUSED = [
    (r"\boxed{abdc}", "dcba"),
    (r"\boxed{abc}", "dcba"),
    (r"\boxed{abc} or \boxed{acb}", "abc"),
    ("", "ab"),
]


def verdict(response: str, reference: str, **params: object):
    bound = load(path="sorted_letters.py:sorted_letters", base=HERE).bind(params)
    return bound.score([Attempt(response, reference)])[0]


@pytest.mark.parametrize(("response", "reference"), ACCEPTED)
def test_right_answers_are_accepted(response: str, reference: str) -> None:
    assert verdict(response, reference).score == 1.0


@pytest.mark.parametrize(("response", "reference"), REFUSED)
def test_wrong_answers_are_refused(response: str, reference: str) -> None:
    assert verdict(response, reference).score == 0.0


def test_parameters_change_the_verdict() -> None:
    assert verdict("ABC", "bca", ignore_case=False).score == 0.0


def test_it_is_fit_to_be_a_reward() -> None:
    report = check("sorted_letters.py:sorted_letters", HERE / "sorted_letters_rows.jsonl", base=HERE)
    assert report.passed, str(report)
