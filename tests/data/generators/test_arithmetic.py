"""Sums against the schoolbook, and the cut between training and evaluation."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verizero.pipeline.data.generators import arithmetic
from verizero.pipeline.data.generators.arithmetic import Params, columns, compose, demonstration
from verizero.pipeline.data.generators.base import generate

SMALL = {"num_train": 500, "num_evaluation": 60, "num_demonstrations": 1200, "num_text": 300}


def _operands(question: str) -> tuple[str, int, int]:
    a, operator, b = re.fullmatch(r"(\d+)([+-])(\d+)=", question).groups()
    return operator, int(a), int(b)


@given(a=st.integers(0, 10**6 - 1), b=st.integers(0, 10**6 - 1))
def test_scratchpad_gives_the_answer(a, b):
    assert compose(columns(("+", a, b), 6)[0]) == a + b
    high, low = max(a, b), min(a, b)
    assert compose(columns(("-", high, low), 6)[0]) == high - low


@given(a=st.integers(0, 99), b=st.integers(0, 99))
def test_columns_are_the_schoolbook_ones(a, b):
    units = a % 10 + b % 10
    assert columns(("+", a, b), 2)[0] == [units, a // 10 + b // 10 + (units > 9)]


@given(a=st.integers(0, 99), b=st.integers(0, 99), noise=st.sampled_from([0.0, 0.3, 1.0]), seed=st.integers(0, 10**6))
def test_a_demonstration_says_the_answer_of_its_own_scratchpad(a, b, noise, seed):
    text = demonstration(("+", a, b), 2, noise, random.Random(seed))
    pattern = r"<think>\S+=(\d+) \S+=(\d+)</think>\\boxed\{(\d+)\}"
    units, tens, answer = map(int, re.fullmatch(pattern, text).groups())
    assert answer == tens * 10 + units % 10
    if noise == 0:
        assert answer == a + b


@pytest.mark.parametrize("forms", [("+",), ("-",), ("+", "-")])
@pytest.mark.parametrize("seed", [0, 1])
def test_no_pair_of_operands_is_trained_on_and_held_out(forms, seed):
    split = generate("arithmetic", {**SMALL, "forms": forms}, seed)
    keys = [{(o, *sorted((a, b))) for o, a, b in (_operands(r["question"]) for r in part)} for part in _parts(split)]
    train, evaluation, demonstrations = keys
    assert not train & evaluation
    assert demonstrations <= train
    assert len({r["question"] for r in split.train}) == SMALL["num_train"] == len(split.train)
    assert len({r["question"] for r in split.evaluation}) == SMALL["num_evaluation"] == len(split.evaluation)


def test_answers_are_right():
    split = generate("arithmetic", {**SMALL, "forms": ["+", "-"]}, 3)
    for row in [*split.train, *split.evaluation]:
        operator, a, b = _operands(row["question"])
        assert row["answer"] == str(a + b if operator == "+" else a - b)
        assert int(row["answer"]) >= 0
        assert row["verifier"] == "math"


def test_noise_sets_how_often_demonstrations_are_right():
    def share_right(noise: float) -> float:
        rows = generate("arithmetic", {**SMALL, "noise": noise, "num_demonstrations": 4000}, 0).demonstrations
        return sum(r["demonstration"].endswith(f"{{{r['answer']}}}") for r in rows) / len(rows)

    assert share_right(0.0) == 1.0
    # Both columns must be right; two slips hardly ever make up for each other.
    assert abs(share_right(0.3) - 0.7 * 0.7) < 0.03


def test_text_lines_show_the_language_without_solving_reliably_and_never_ask_what_is_held_out():
    params = Params(**{**SMALL, "num_text": 3000})
    lines = arithmetic.text_lines(params, 0)
    assert len(lines) == 3000
    held_out = {r["question"] for r in arithmetic.rows(params, 0).evaluation}
    asked = [m for line in lines if (m := re.match(r"(\d+\+\d+=)(?:<think>.*</think>\\boxed\{)?(\d+)", line))]
    assert len(asked) > 1500
    assert not {m[1] for m in asked} & held_out
    right = sum(int(m[2]) == sum(_operands(m[1])[1:]) for m in asked) / len(asked)
    assert 0.02 < right < 0.5
    assert any(line.startswith("<think>") for line in lines)


def _parts(split):
    return split.train, split.evaluation, split.demonstrations
