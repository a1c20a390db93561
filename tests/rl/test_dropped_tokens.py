"""Tokens that a mask drops: no gradient reaches them, and the kept ones are a response of their own."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.oracles import rl as oracle
from tests.oracles.rl_batches import pad, random_rows, solve
from tests.rl.variants import LONGEST
from verizero.pipeline import registry
from verizero.pipeline.algorithms.base import load_algorithm
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.rl.catalog import REJECTIONS
from verizero.pipeline.rl.loss import LossInputs, rejection_keep, response_weight

ICEPOP = {"mismatch_level": "token", "mismatch_action": "mask", "mismatch_floor": 0.8, "mismatch_cap": 1.25}
DROPS: dict[str, dict[str, Any]] = {
    "high_entropy": {"high_entropy_share": 0.2},
    "mismatch": ICEPOP,
    "rejected": {"mismatch_reject": {"token_k2": 0.04}},
}
PRESETS = [name for name in registry.names("algorithms") if name != "custom"]


def dropped(option: str, inputs: LossInputs) -> Tensor:
    """[B, T] bool: the tokens that the option drops, without the code under test."""
    assert inputs.old_logprobs is not None
    assert inputs.rollout_logprobs is not None
    x = inputs.old_logprobs - inputs.rollout_logprobs
    if option == "mismatch":
        return (x.exp() < 0.8) | (x.exp() > 1.25)
    if option == "rejected":
        return x**2 / 2 > 0.04
    tokens: Tensor = getattr(inputs, option)
    return ~tokens


@pytest.mark.parametrize("option", DROPS)
@pytest.mark.parametrize("name", PRESETS)
def test_a_dropped_token_has_no_gradient(name: str, option: str) -> None:
    """The KL to the reference is off: it holds back every token, dropped or not. So is a preset's own rejection."""
    parts = load_algorithm(name, {"mismatch_reject": {}, **DROPS[option], "kl_coef": 0})[1].resolve(LONGEST)
    inputs = pad(random_rows(7, drift=0.2, per_token=parts.token_advantage)).inputs
    inputs = dataclasses.replace(inputs, truncated=torch.zeros(6), logprobs=inputs.old_logprobs + 1e-5)  # type: ignore[operator]
    gradient = solve(parts, inputs).gradient
    mask = inputs.response_mask > 0
    gone = mask & dropped(option, inputs)
    assert int(gone.sum()) > 3
    assert bool((gradient[gone] == 0).all())
    assert int((gradient[mask & ~gone] != 0).sum()) > 3


@pytest.mark.parametrize("name", ["gspo", "gspo_token", "luspo", "gmpo", "kimi_k2", "vespo"])
def test_the_kept_tokens_are_a_response_of_their_own(name: str) -> None:
    """The ratio reads the kept tokens alone: other values at the dropped ones change neither loss nor gradient."""
    parts = load_algorithm(name, {**DROPS["high_entropy"], "kl_coef": 0})[1].resolve(LONGEST)
    inputs = pad(random_rows(8, drift=3e-4)).inputs
    junk = torch.where(inputs.high_entropy, inputs.logprobs, inputs.logprobs - 0.7)  # type: ignore[arg-type]
    plain, other = solve(parts, inputs), solve(parts, dataclasses.replace(inputs, logprobs=junk))
    assert other.loss == pytest.approx(plain.loss, rel=1e-9) or name == "vespo"  # its loss has A log pi of kept tokens
    assert torch.allclose(other.gradient, plain.gradient, rtol=1e-9)


def test_a_response_without_a_kept_token_trains_nothing_and_still_counts() -> None:
    parts = load_algorithm("gmpo", DROPS["high_entropy"])[1]
    inputs = pad(random_rows(9)).inputs
    none = dataclasses.replace(inputs, high_entropy=torch.zeros_like(inputs.response_mask))
    solved = solve(parts, none)
    assert solved.loss == 0.0
    assert bool((solved.gradient == 0).all())
    assert solved.metrics["sequences/trained"] == 6


def test_one_weight_of_a_response_is_the_geometric_mean_of_its_kept_tokens() -> None:
    weights = torch.tensor([[0.5, 2.0, 0.0, 8.0], [0.0, 0.0, 3.0, 3.0]], dtype=torch.float64)
    kept = torch.tensor([[True, True, False, True], [False, False, False, False]])
    assert response_weight(weights, kept).tolist() == [[pytest.approx(2.0)], [0.0]]


@pytest.mark.parametrize("name", REJECTIONS)
@pytest.mark.parametrize("bounds", [(-0.05, 0.05), (-0.3, 0.3), (-0.01, 2.0)])
def test_a_criterion_keeps_what_the_double_keeps(name: str, bounds: tuple[float, float]) -> None:
    rows = random_rows(3, num=12)
    padded = pad(rows)
    mask = padded.inputs.response_mask > 0
    old, gen = (torch.where(mask, x, 0.0) for x in (padded.inputs.old_logprobs, padded.inputs.rollout_logprobs))  # type: ignore[arg-type]
    keep = rejection_keep(((name, *bounds),), old, gen, mask)
    kept = [[bool(keep[i, t]) for t in places] for i, places in enumerate(padded.where)]
    assert kept == [[not r for r in oracle.rejected([(name, *bounds)], row)] for row in rows]


def test_rejection_moves_no_denominator_and_is_counted() -> None:
    rows = random_rows(4)
    parts = load_algorithm("grpo", {"kl_coef": 0, "mismatch_reject": {"max_k2": 1e-9}})[1]
    solved = solve(parts, pad(rows).inputs)
    assert solved.loss == 0.0
    assert solved.metrics["masked/rejected"] == 1.0
    assert solved.metrics["tokens/trained"] == sum(len(row.lp) for row in rows)


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"mismatch_reject": {"mean_k4": 1.0}}, "mismatch_reject.*mean_k"),
        ({"mismatch_reject": {"mean_k1": [1.0, -1.0]}}, r"mismatch_reject.mean_k1 .* 1 and -1"),
    ],
)
def test_choices_without_a_meaning_are_refused(params: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load_algorithm("grpo", params)


def test_a_missing_input_is_named() -> None:
    inputs = dataclasses.replace(pad(random_rows(0)).inputs, rollout_logprobs=None)
    with pytest.raises(DataError, match="rollout_logprobs"):
        solve(load_algorithm("grpo", {"mismatch_reject": {"max_k2": 0.1}})[1], inputs)
