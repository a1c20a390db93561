"""Weights and masks on their own: levels, bounds, boundaries."""

from __future__ import annotations

import math
import random

import pytest
import torch

from tests.oracles import rl as oracle
from verizero.pipeline.algorithms.base import load_algorithm
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.rl.corrections import mismatch_weights, off_policy_keep, training_mask
from verizero.pipeline.rl.parts import Mismatch


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("action", ["truncate", "mask"])
def test_weights(level: str, action: str) -> None:
    r = random.Random(0)
    old = [-r.random() for _ in range(5)]
    gen = [x + r.gauss(0, 0.3) for x in old]
    row = oracle.Row(old, old, old, gen, old, old)
    for floor, cap in [(0.0, 2.0), (0.9, 1.1), (0.0, 0.5), (1.5, 3.0)]:
        choice = Mismatch(level=level, action=action, floor=floor, cap=cap)
        mask = torch.tensor([[True] * 5 + [False]])
        tensors = [torch.tensor([[*x, 0.0]], dtype=torch.float64) for x in (old, gen)]
        found = mismatch_weights(choice, tensors[0], tensors[1], mask).expand(1, 6)[0, :5]
        assert found.tolist() == pytest.approx(oracle.mismatch_weights(level, action, floor, cap, row), rel=1e-12)


def test_a_product_over_a_long_response_leaves_a_range_that_its_root_stays_in() -> None:
    mask = torch.ones(1, 200, dtype=torch.bool)
    old, gen = torch.zeros(1, 200), torch.full((1, 200), -0.01)
    product = mismatch_weights(Mismatch(level="sequence", action="mask", cap=2.0), old, gen, mask)
    root = mismatch_weights(Mismatch(level="geometric", action="mask", cap=2.0), old, gen, mask)
    assert float(product) == 0.0
    assert float(root) == pytest.approx(math.exp(0.01), rel=1e-6)


def test_unknown_choices_are_refused() -> None:
    x = torch.zeros(1, 1)
    for wrong in (Mismatch(level="word"), Mismatch(level="token", action="drop")):  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="known:"):
            mismatch_weights(wrong, x, x, x == 0)


def test_the_off_policy_mask_spares_what_is_good() -> None:
    mask = torch.ones(4, 3, dtype=torch.bool)
    lp = torch.zeros(4, 3)
    gen = torch.tensor([0.5, 0.5, 0.1, -9.0])[:, None].expand(4, 3)
    adv = torch.tensor([1.0, -1.0, -1.0, -1.0])[:, None].expand(4, 3)
    assert off_policy_keep(lp, gen, adv, mask, 0.2)[:, 0].tolist() == [True, False, True, True]
    # the boundary is kept
    assert bool(off_policy_keep(lp, gen, adv, mask, 0.5).all())


def test_within_a_stale_response_only_the_negative_tokens_go() -> None:
    mask = torch.ones(1, 3, dtype=torch.bool)
    adv = torch.tensor([[-1.0, 0.0, 2.0]])
    assert off_policy_keep(torch.zeros(1, 3), torch.ones(1, 3), adv, mask, 0.2).tolist() == [[False, True, True]]


def test_the_overlong_filter_takes_whole_responses() -> None:
    _, parts = load_algorithm("grpo", {"overlong_filter": True})
    mask = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    assert training_mask(parts, mask, torch.tensor([True, False])).tolist() == [[False, False], [False, True]]
    with pytest.raises(ConfigError, match="truncated"):
        training_mask(parts, mask, None)
