"""The weights of stale tokens and of drift: against slow doubles, in fresh rows, and at the cap."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.oracles import distillation as slow
from tests.rl.test_distillation import logits_of
from verizero.pipeline.rl.distillation import drift_weights, stale_weights
from verizero.pipeline.rl.divergences import Objective


@pytest.mark.parametrize(("level", "over"), [("token", "sampled"), ("prefix", "sampled"), ("prefix", "vocabulary")])
@pytest.mark.parametrize("cap", [1.2, math.inf])
def test_weights_are_those_of_the_slow_double(level: Any, over: Any, cap: float) -> None:
    logprobs, sampled = logits_of(4, 1, 6), logits_of(4, 2, 6)
    mask = torch.arange(6)[None] < torch.tensor([[6], [4], [1], [3]])
    how = Objective(over=over, stale_weights=level, stale_cap=cap)
    found = stale_weights(logprobs, sampled, torch.tensor([True] * 4), mask, how)
    divergences = logits_of(4, 3, 6)
    drifts = drift_weights(divergences, mask, 0.7)
    for i, n in enumerate((6, 4, 1, 3)):
        ratios = (logprobs[i, :n] - sampled[i, :n]).exp().tolist()
        wanted = slow.importance(ratios, level, over == "sampled", cap)
        assert found.values[i, :n].tolist() == pytest.approx(wanted, rel=1e-12)
        uncut = slow.importance(ratios, level, over == "sampled", math.inf)
        assert found.clamped[i].tolist() == [w > cap for w in uncut] + [False] * (6 - n)
        assert drifts[i, :n].tolist() == pytest.approx(slow.drift(divergences[i, :n].tolist(), 0.7), rel=1e-12)


def test_weights_are_1_in_fresh_rows_and_those_above_the_cap_are_told() -> None:
    logprobs = torch.tensor([[-1.0, -1.0, float("nan")], [-1.0, -1.0, -3.0]], dtype=torch.float64)
    sampled = torch.tensor([[-2.0, -1.0, 0.0], [-2.0, -1.0, -1.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    how = Objective(over="sampled", stale_weights="token", stale_cap=2.0)
    found = stale_weights(logprobs, sampled, torch.tensor([True, False]), mask, how)
    assert found.values.tolist() == [[2.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    assert found.clamped.tolist() == [[True, False, False], [False, False, False]]
    prefix = replace(how, stale_weights="prefix", stale_cap=math.inf)
    to_token = stale_weights(logprobs[1:], sampled[1:], torch.tensor([True]), mask[1:], prefix).values
    before = stale_weights(
        logprobs[1:], sampled[1:], torch.tensor([True]), mask[1:], replace(prefix, over="vocabulary")
    )
    assert to_token.tolist() == [pytest.approx([math.e, math.e, math.exp(-1)])]
    assert before.values.tolist() == [pytest.approx([1.0, math.e, math.e])]


def test_weights_by_drift_fall_from_the_first_token_to_the_last() -> None:
    divergences = torch.tensor([[1.0, -2.0, float("nan"), 1.0], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False, True], [True] * 4])
    found = drift_weights(divergences, mask, 0.8)
    assert found[0][mask[0]].tolist() == pytest.approx([1.8, 1.6, 1.2])
    assert found[1].tolist() == [1.8] * 4
