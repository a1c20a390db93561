"""Weights and masks on their own: levels, bounds, boundaries."""

from __future__ import annotations

import math

import pytest
import torch

from verizero.pipeline.algorithms.base import load_algorithm
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.rl.loss import mismatch_weights, off_policy_keep, training_mask
from verizero.pipeline.rl.parts import PolicyParams


def test_a_product_over_a_long_response_leaves_a_range_that_its_root_stays_in() -> None:
    mask = torch.ones(1, 200, dtype=torch.bool)
    old, gen = torch.zeros(1, 200), torch.full((1, 200), -0.01)
    product = mismatch_weights(PolicyParams(mismatch_level="sequence", mismatch_action="mask"), old, gen, mask)
    root = mismatch_weights(PolicyParams(mismatch_level="geometric", mismatch_action="mask"), old, gen, mask)
    assert float(product) == 0.0
    assert float(root) == pytest.approx(math.exp(0.01), rel=1e-6)


def test_the_off_policy_mask_spares_what_is_good() -> None:
    mask = torch.ones(4, 3, dtype=torch.bool)
    lp = torch.zeros(4, 3)
    gen = torch.tensor([0.5, 0.5, 0.1, -9.0])[:, None].expand(4, 3)
    adv = torch.tensor([1.0, -1.0, -1.0, -1.0])[:, None].expand(4, 3)
    assert off_policy_keep(lp, gen, adv, mask, 0.2)[:, 0].tolist() == [True, False, True, True]
    # the boundary is kept
    assert bool(off_policy_keep(lp, gen, adv, mask, 0.5).all())


def test_the_overlong_filter_takes_whole_responses() -> None:
    _, parts = load_algorithm("grpo", {"overlong_filter": True})
    mask = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    assert training_mask(parts, mask, torch.tensor([True, False])).tolist() == [[False, False], [False, True]]
    with pytest.raises(ConfigError, match="truncated"):
        training_mask(parts, mask, None)
