"""A table in pieces over ranks gives what a whole one gives: doubles in float64, with and without the kernel."""

from __future__ import annotations

import pytest

from tests.train.rank_group import run, run_interpreted

CLOSE = {"float32": 3e-6, "bfloat16": 3e-2}
"""Share of the greatest number. In bfloat16 logits are rounded to eight digits, and so are gradients on their way."""


@pytest.mark.integration
@pytest.mark.parametrize("size", [2, 4])
def test_pieces_give_what_the_whole_gives(size: int) -> None:
    for rank in run("tests.models.divided_rank", size):
        assert_close(rank)


@pytest.mark.integration
def test_the_kernel_takes_pieces_too() -> None:
    for rank in run_interpreted("tests.models.divided_rank", 2):
        assert_close(rank)


def assert_close(rank: dict[str, dict[str, float]]) -> None:
    far = {
        (case, what): share
        for case, shares in rank.items()
        for what, share in shares.items()
        if not share <= CLOSE[case.split()[-1]]
    }
    assert far == {}
    assert len(rank) >= 20
