"""Verifiers against slow, obvious doubles on generated cases."""

import itertools
import json
import math
import random
import re
from collections import Counter
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verizero.pipeline.types import Attempt
from verizero.verifiers import base
from verizero.verifiers._natural_language import language_of
from verizero.verifiers.numeric import number

load = lru_cache(base.load)


def score(name, reference, response, **params):
    said = load(name).bind(params).score([Attempt(response, reference)])[0]
    assert not said.is_infrastructure, said
    return said.score


DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**6), max_value=10**6)


@given(st.fractions(), st.integers(-20, 20), DECIMALS)
def test_numbers_are_read_exactly(value, exponent, decimal):
    assert number(f"{decimal:f}") == Fraction(decimal)
    assert number(f"{value.numerator}/{value.denominator}") == value
    assert number(f"{value.numerator}e{exponent}") == value.numerator * Fraction(10) ** exponent
    assert number(f"{value.numerator:,}") == value.numerator
    sign = "-" if value < 0 else ""
    assert number(rf"{sign}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}") == value


def _expressions(numbers):
    """All expressions over all of `numbers`, in this order of use, by every way to bracket them."""
    if len(numbers) == 1:
        return [str(numbers[0])]
    made = []
    for i in range(1, len(numbers)):
        for left, right in itertools.product(_expressions(numbers[:i]), _expressions(numbers[i:])):
            made += [f"({left}{op}{right})" for op in "+-*/"]
    return made


def test_countdown_agrees_with_python_on_every_expression():
    """Python evaluates the expressions that we made, over Fractions; the verifier parses them."""
    rng = random.Random(5)
    for _ in range(40):
        numbers = tuple(rng.randint(1, 12) for _ in range(rng.randint(1, 4)))
        for text in rng.sample(_expressions(numbers), k=min(6, len(_expressions(numbers)))):
            plain = re.sub(r"\d+", lambda m: f"Fraction({m[0]})", text)
            try:
                value = eval(plain, {"Fraction": Fraction})
            except ZeroDivisionError:
                value = None
            target = rng.choice([value, 7]) if value is not None and value.denominator == 1 else 7
            game = {"numbers": list(numbers), "target": int(target)}
            assert score("countdown", game, f"<answer>{text}</answer>") == float(value == target), text
            extra = {"numbers": list(numbers[:-1]) or [numbers[0] + 1], "target": int(target)}
            assert score("countdown", extra, f"<answer>{text}</answer>") == 0.0


@given(st.integers(0, 400), st.integers(1, 300), st.integers(0, 300))
def test_length_is_the_papers_penalty_plus_one(n, longest, buffer):
    """DAPO's equation 13, as printed, with L_max = longest and L_cache = buffer."""
    if buffer > longest:
        return
    if n <= longest - buffer:
        penalty = 0.0
    elif n <= longest and buffer:
        penalty = ((longest - buffer) - n) / buffer
    else:
        penalty = -1.0
    got = score("length", None, "x" * n, max_length=longest, buffer=buffer)
    assert math.isclose(got, 1 + penalty, abs_tol=1e-12)


@given(st.lists(st.sampled_from("ab"), max_size=30), st.integers(1, 4))
def test_repetition_is_one_minus_the_excess_share(words, n):
    text = " ".join(words)
    if not text:
        return
    grams = Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
    repeated = sum(c - 1 for c in grams.values())
    share = repeated / sum(grams.values()) if grams else 0.0
    wanted = 1 - max(0.0, share - 0.25) / 0.75
    assert math.isclose(score("repetition", None, text, ngram=n, free_share=0.25), wanted, abs_tol=1e-12)


def test_loops_score_low_and_prose_scores_one():
    assert score("repetition", None, "I am sure. " * 300) < 0.05
    assert score("repetition", None, "好" * 500) < 0.05
    assert score("repetition", None, " ".join(map(str, range(500)))) == 1.0


LANGUAGES = list(map(json.loads, Path(__file__).with_name("languages.jsonl").read_text(encoding="utf-8").splitlines()))
SAMPLES = {row["code"]: row["text"] for row in LANGUAGES if "whole" in row}


def test_short_and_mixed_texts_have_a_language():
    assert [row for row in LANGUAGES if language_of(row["text"]) != row["code"]] == []


@pytest.mark.parametrize("code", SAMPLES)
def test_a_language_is_told_from_all_others(code):
    for other in SAMPLES:
        wanted = [{"type": "language", "code": other}]
        assert score("instructions", wanted, SAMPLES[code]) == float(other == code)


def test_a_text_in_two_scripts_is_in_no_language():
    assert language_of(SAMPLES["en"] + SAMPLES["ru"]) is None
    assert language_of("12 + 30 = 42") is None
