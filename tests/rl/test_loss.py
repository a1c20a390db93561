"""Loss and gradient of every objective against the double on ragged rows, in float64; weights and masks alone."""

import dataclasses
import math

import pytest
import torch

from tests.oracles import rl as oracle
from tests.oracles.rl_batches import count_of, pad, random_rows, solve
from tests.rl.variants import rows_like, variants
from verizero.pipeline.algorithms.base import load_algorithm
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.rl.catalog import REJECTIONS
from verizero.pipeline.rl.loss import (
    Counts,
    mismatch_weights,
    policy_loss,
    ptx_loss,
    rejection_keep,
    response_weight,
    summarize,
)
from verizero.pipeline.rl.parts import Parts, PolicyParams

VARIANTS = variants()
STEP = 1e-6


def drift_of(name: str, tight: float) -> float:
    """Drift of log-ratios for which the clip of a variant cuts off some tokens and not all."""
    return tight if VARIANTS[name].ratio in ("sequence", "sequence_token") and "wide" not in name else 0.3


def run(parts: Parts, rows: list[oracle.Row], seed: int = 0) -> tuple[float, list[list[float]]]:
    padded = pad(rows, seed)
    solved = solve(parts, padded.inputs)
    return solved.loss, padded.by_row(solved.gradient)


@pytest.mark.parametrize("name", VARIANTS)
def test_loss_equals_the_double(name: str) -> None:
    for seed in range(6):
        parts = VARIANTS[name]
        rows = random_rows(seed, drift=drift_of(name, 3e-4), **rows_like(parts))
        value, _ = run(parts, rows, seed)
        assert value == pytest.approx(oracle.loss(parts, rows), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", VARIANTS)
def test_gradient_equals_finite_differences_of_the_double(name: str) -> None:
    parts = VARIANTS[name]
    rows = random_rows(11, num=4, longest=5, drift=drift_of(name, 3e-3), **rows_like(parts))
    _, gradient = run(parts, rows)
    for i, row in enumerate(rows):
        for t in range(len(row.lp)):
            nudged = []
            for sign in (1, -1):
                lp = list(row.lp)
                lp[t] += sign * STEP
                moved = dataclasses.replace(row, lp=lp, still=list(row.lp))
                nudged.append(oracle.loss(parts, [*rows[:i], moved, *rows[i + 1 :]]))
            slope = (nudged[0] - nudged[1]) / (2 * STEP)
            assert gradient[i][t] == pytest.approx(slope, rel=1e-6, abs=1e-8)


def test_the_doubles_rows_reach_every_branch() -> None:
    """The rows above clip on both sides, drop by every mask and select: a double of idle branches proves nothing."""
    seen: dict[str, float] = {}
    for name in ("grpo", "gspo", "gmpo", "off_policy", "mis_geometric", "high_entropy", "overlong_filter", "clip_cov"):
        for seed in range(6):
            solved = solve(VARIANTS[name], pad(random_rows(seed, drift=drift_of(name, 3e-3)), seed).inputs)
            for key, value in solved.metrics.items():
                seen[f"{name}:{key}"] = max(seen.get(f"{name}:{key}", 0.0), value)
    for name in ("grpo", "gspo", "gmpo"):
        assert seen[f"{name}:clip_fraction/low"] > 0
        assert seen[f"{name}:clip_fraction/high"] > 0
    assert seen["off_policy:masked/off_policy"] > 0
    assert seen["mis_geometric:masked/mismatch"] > 0
    assert seen["high_entropy:masked/low_entropy"] > 0
    assert seen["overlong_filter:masked/overlong"] > 0
    assert seen["clip_cov:masked/selected"] > 0


@pytest.mark.parametrize("name", VARIANTS)
def test_rows_without_a_trained_token_change_nothing(name: str) -> None:
    parts = VARIANTS[name]
    rows = random_rows(3, **rows_like(parts))
    empty = oracle.Row([], [], [], [], [], [])
    alone, gradient = run(parts, rows)
    among, padded_gradient = run(parts, [rows[0], empty, *rows[1:], empty])
    assert among == pytest.approx(alone, rel=1e-12)
    assert padded_gradient[1] == []
    for mine, theirs in zip([padded_gradient[0], *padded_gradient[2:-1]], gradient, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-12)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_batch_of_nothing_has_loss_0_and_gradient_0(name: str) -> None:
    solved = solve(VARIANTS[name], pad([oracle.Row([], [], [], [], [], [])] * 2).inputs, Counts())
    assert solved.loss == 0.0
    assert bool((solved.gradient == 0).all())


@pytest.mark.parametrize("name", ["grpo", "dppo", "dppo_kl"])
def test_a_runaway_ratio_and_a_certain_token_stay_finite(name: str) -> None:
    runaway = oracle.Row([-1.0, -1.0], [-200.0, -1.0], [-1.0, 300.0], [-1.0, -1.0], [-1.0, -1.0], [0.0, 0.0])
    certain = oracle.Row([0.0, 0.0], [0.0, -0.7], [0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0])
    solved = solve(VARIANTS[name], pad([runaway, certain]).inputs)
    assert math.isfinite(solved.loss)
    assert bool(torch.isfinite(solved.gradient).all())
    assert solved.metrics["ratio/clamped"] == 0.25


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("grpo", "ref_logprobs"),
        ("off_policy", "rollout_logprobs"),
        ("rejected", "rollout_logprobs"),
        ("entropy", "entropy"),
        ("high_entropy", "high_entropy"),
        ("clip_cov", "selected"),
        ("ppo", "old_logprobs"),
        ("overlong_filter", "truncated"),
    ],
)
def test_a_missing_input_is_named(name: str, missing: str) -> None:
    inputs = dataclasses.replace(pad(random_rows(0)).inputs, **{missing: None})
    with pytest.raises((ConfigError, DataError), match=missing):
        policy_loss(VARIANTS[name], inputs, Counts(10, 2))


def test_old_logprobs_may_be_absent_where_a_batch_is_used_once() -> None:
    inputs = pad(random_rows(5, on_policy=True)).inputs
    bare = dataclasses.replace(inputs, old_logprobs=None)
    assert solve(VARIANTS["grpo"], bare).loss == solve(VARIANTS["grpo"], inputs).loss


def test_statistics_of_other_tokens_than_the_denominators_are_refused() -> None:
    solved = solve(VARIANTS["grpo"], pad(random_rows(5)).inputs)
    tokens = solved.totals.tokens
    with pytest.raises(DataError, match=f"{2 * tokens:g} tokens .* {tokens:g}"):
        summarize(solved.stats + solved.stats, solved.totals)


def test_ptx_is_the_mean_negative_log_likelihood_over_all_texts_tokens() -> None:
    rows = random_rows(9)
    inputs = pad(rows).inputs
    inputs.logprobs.requires_grad_()
    tokens = [x for row in rows for x in row.lp]
    pieces = [
        ptx_loss(inputs.logprobs[s], inputs.response_mask[s], len(tokens), 0.3) for s in (slice(0, 2), slice(2, 6))
    ]
    sum(pieces).backward()
    assert float(sum(pieces).detach()) == pytest.approx(-0.3 * oracle.mean(tokens), rel=1e-12)
    expected = torch.where(inputs.response_mask > 0, -0.3 / len(tokens), 0.0)
    assert torch.allclose(inputs.logprobs.grad, expected.double(), rtol=1e-6)


@pytest.mark.parametrize("name", VARIANTS)
def test_float32_is_float64_to_its_own_precision(name: str) -> None:
    parts = VARIANTS[name]
    rows = random_rows(13, drift=0.05, **rows_like(parts))
    exact, _ = run(parts, rows)
    single = pad(rows, dtype=torch.float32).inputs
    out = policy_loss(parts, single, count_of(parts, single))
    assert out.loss.dtype == torch.float32
    assert float(out.loss) == pytest.approx(exact, rel=2e-5, abs=2e-6)


def test_a_response_without_a_kept_token_trains_nothing_and_still_counts() -> None:
    inputs = pad(random_rows(9)).inputs
    none = dataclasses.replace(inputs, high_entropy=torch.zeros_like(inputs.response_mask))
    solved = solve(VARIANTS["gmpo_high_entropy"], none)
    assert solved.loss == 0.0
    assert bool((solved.gradient == 0).all())
    assert solved.metrics["sequences/trained"] == 6
    weights = torch.tensor([[0.5, 2.0, 0.0, 8.0], [0.0, 0.0, 3.0, 3.0]], dtype=torch.float64)
    kept = torch.tensor([[True, True, False, True], [False, False, False, False]])
    assert response_weight(weights, kept).tolist() == [[pytest.approx(2.0)], [0.0]]


@pytest.mark.parametrize("name", REJECTIONS)
@pytest.mark.parametrize("bounds", [(-0.05, 0.05), (-0.3, 0.3), (-0.01, 2.0)])
def test_a_criterion_keeps_what_the_double_keeps(name: str, bounds: tuple[float, float]) -> None:
    rows = random_rows(3, num=12)
    padded = pad(rows)
    mask = padded.inputs.response_mask > 0
    old, gen = (torch.where(mask, x, 0.0) for x in (padded.inputs.old_logprobs, padded.inputs.rollout_logprobs))
    keep = rejection_keep(((name, *bounds),), old, gen, mask)
    kept = [[bool(keep[i, t]) for t in places] for i, places in enumerate(padded.where)]
    assert kept == [[not r for r in oracle.rejected([(name, *bounds)], row)] for row in rows]


def test_rejection_moves_no_denominator_and_is_counted() -> None:
    rows = random_rows(4)
    solved = solve(load_algorithm("grpo", {"kl_coef": 0, "mismatch_reject": {"max_k2": 1e-9}})[1], pad(rows).inputs)
    assert solved.loss == 0.0
    assert solved.metrics["masked/rejected"] == 1.0
    assert solved.metrics["tokens/trained"] == sum(len(row.lp) for row in rows)


def test_a_product_over_a_long_response_leaves_a_range_that_its_root_stays_in() -> None:
    mask = torch.ones(1, 200, dtype=torch.bool)
    old, gen = torch.zeros(1, 200), torch.full((1, 200), -0.01)
    product = mismatch_weights(PolicyParams(mismatch_level="sequence", mismatch_action="mask"), old, gen, mask)
    root = mismatch_weights(PolicyParams(mismatch_level="geometric", mismatch_action="mask"), old, gen, mask)
    assert float(product) == 0.0
    assert float(root) == pytest.approx(math.exp(0.01), rel=1e-6)
