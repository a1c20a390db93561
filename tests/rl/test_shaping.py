"""Penalties on length."""

from __future__ import annotations

import pytest

from verizero.pipeline.algorithms.base import load_algorithm
from verizero.pipeline.rl.parts import Shaping
from verizero.pipeline.rl.shaping import length_penalty, soft_overlong


def test_the_published_example() -> None:
    assert soft_overlong(90, 100, 0.2) == pytest.approx(-0.5)


@pytest.mark.parametrize(("longest", "buffer"), [(100, 0.2), (20480, 0.2), (7, 0.5), (10, 1.0)])
def test_it_is_0_then_a_line_then_minus_1(longest: int, buffer: float) -> None:
    cache = longest * buffer
    values = [soft_overlong(n, longest, buffer) for n in range(longest + 5)]
    for n, value in enumerate(values):
        if n <= longest - cache:
            assert value == 0.0
        elif n <= longest:
            assert value == pytest.approx(((longest - cache) - n) / cache)
        else:
            assert value == -1.0
    assert values[longest] == pytest.approx(-1.0)


def test_penalties_add_up() -> None:
    shaping = Shaping(overlong_buffer=0.2, overlong_factor=2.0, token_budget=80, token_budget_penalty=0.25)
    assert length_penalty(shaping, 80, 100) == 0.0
    assert length_penalty(shaping, 81, 100) == pytest.approx(-0.25 - 2.0 / 20)
    assert length_penalty(shaping, 500, 100) == pytest.approx(-2.25)
    assert length_penalty(Shaping(), 500, 100) == 0.0


def test_dapo_has_the_papers_share() -> None:
    shaping = load_algorithm("dapo")[1].shaping
    assert length_penalty(shaping, 16384, 20480) == 0.0
    assert length_penalty(shaping, 18432, 20480) == pytest.approx(-0.5)
