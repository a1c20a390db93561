"""Loss and gradient do not depend on how a batch is cut, padded, ordered or spread over ranks."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracles.rl import Row
from tests.oracles.rl_batches import count_of, pad, random_rows, solve
from tests.rl.variants import rows_like, variants
from tests.train.rank_group import run
from verizero.pipeline.rl.loss import summarize
from verizero.pipeline.rl.parts import Parts

VARIANTS = variants()
NEAR = {"rel": 1e-12, "abs": 1e-12}


Found = tuple[float, list[list[float]], dict[str, float]]


def cut(parts: Parts, pieces: list[list[Row]], seed: int = 0) -> Found:
    """Return (loss, gradient row by row, metrics) of a batch in these micro-batches, each padded on its own."""
    micro = [pad(piece, seed + i, extra=2 + i) for i, piece in enumerate(pieces)]
    totals = count_of(parts, *(m.inputs for m in micro))
    solved = [solve(parts, m.inputs, totals) for m in micro]
    grads = [row for m, s in zip(micro, solved, strict=True) for row in m.by_row(s.gradient)]
    return sum(s.loss for s in solved), grads, summarize(torch.stack([s.stats for s in solved]).sum(0), totals)


def same(a: Found, b: Found, order: list[int] | None = None) -> None:
    order = order or list(range(len(a[1])))
    assert b[0] == pytest.approx(a[0], **NEAR)
    for mine, i in zip(b[1], order, strict=True):
        assert mine == pytest.approx(a[1][i], **NEAR)
    assert b[2] == pytest.approx(a[2], **NEAR)


@pytest.mark.parametrize("name", VARIANTS)
@settings(max_examples=5, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 5), max_size=3))
def test_micro_batches(name: str, seed: int, cuts: list[int]) -> None:
    parts = VARIANTS[name]
    rows = random_rows(seed, **rows_like(parts))
    edges = sorted({0, *cuts, len(rows)})
    pieces = [rows[a:b] for a, b in itertools.pairwise(edges)]
    same(cut(parts, [rows]), cut(parts, pieces, seed))


@pytest.mark.parametrize("name", VARIANTS)
def test_padding_and_order(name: str) -> None:
    parts = VARIANTS[name]
    rows = random_rows(21, **rows_like(parts))
    straight = cut(parts, [rows])
    for seed in range(3):
        order = list(range(len(rows)))
        random.Random(seed).shuffle(order)
        same(straight, cut(parts, [[rows[i] for i in order]], seed=seed + 5), order)


@pytest.mark.integration
def test_two_ranks() -> None:
    ranks = run("tests.rl.invariance_rank", 2)
    for name, parts in VARIANTS.items():
        rows = random_rows(31, **rows_like(parts))
        loss, grads, metrics = ranks[0][name]
        assert ranks[1][name][0] == loss
        same(cut(parts, [rows]), (loss, grads + ranks[1][name][1], metrics))
