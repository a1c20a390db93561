"""Metrics of an update against plain counting over ragged rows."""

import dataclasses
import math
import random

import pytest
import torch

from tests.oracles.rl import Row, beyond, kl, mean
from tests.oracles.rl_batches import pad, random_rows, solve
from verizero.pipeline.algorithms.base import load_algorithm
from verizero.pipeline.rl.loss import LossInputs, clip_range
from verizero.pipeline.rl.metrics import NUM_STATS, summarize_stats
from verizero.pipeline.rl.parts import Parts


def metrics_of(parts: Parts, rows: list[Row]) -> dict[str, float]:
    return solve(parts, pad(rows).inputs).metrics


def flat(rows: list[Row], *names: str) -> list[tuple[float, ...]]:
    return [values for row in rows for values in zip(*(getattr(row, n) for n in names), strict=True)]


def test_every_mean_is_the_mean_over_tokens() -> None:
    _, parts = load_algorithm("grpo")
    rows = random_rows(0, num=12)
    got = metrics_of(parts, rows)
    tokens = flat(rows, "lp", "old", "ref", "gen", "adv", "entropy")
    near = {"rel": 1e-9}
    drift = [lp - old for lp, old, *_ in tokens]
    assert got["tokens/trained"] == len(tokens)
    assert got["sequences/trained"] == len(rows)
    assert got["ratio/mean"] == pytest.approx(mean([math.exp(d) for d in drift]), **near)
    assert got["policy_kl/k3"] == pytest.approx(mean([math.exp(d) - 1 - d for d in drift]), **near)
    assert got["kl/k1"] == pytest.approx(mean([kl("k1", lp, ref, 0) for lp, _, ref, *_ in tokens]), **near)
    assert got["kl/k3"] == pytest.approx(mean([kl("k3", lp, ref, 0) for lp, _, ref, *_ in tokens]), **near)
    assert got["mismatch/k1"] == pytest.approx(mean([gen - old for _, old, _, gen, *_ in tokens]), **near)
    assert got["mismatch/k3"] == pytest.approx(mean([kl("k3", g, o, 0) for _, o, _, g, *_ in tokens]), **near)
    apart = sorted(abs(gen - old) for _, old, _, gen, *_ in tokens)
    assert got["mismatch/abs"] == pytest.approx(mean(apart), **near)
    for q in (50, 90, 99):
        assert got[f"mismatch/p{q}"] == pytest.approx(apart[math.ceil(q / 100 * len(apart)) - 1], rel=0.1)
    assert got["entropy"] == pytest.approx(mean([h for *_, h in tokens]), **near)
    assert got["surprise"] == pytest.approx(-mean([lp for lp, *_ in tokens]), **near)
    advantages = [a for *_, a, _ in tokens]
    weights = [math.exp(lp - gen) for lp, _, _, gen, *_ in tokens]
    assert got["ess"] == pytest.approx(sum(weights) ** 2 / sum(w * w for w in weights) / len(weights), **near)
    assert got["clip_fraction/low"] == mean(
        [float(math.exp(d) < 0.8 and a < 0) for d, a in zip(drift, advantages, strict=True)]
    )
    assert got["clip_fraction/high"] == mean(
        [float(math.exp(d) > 1.2 and a > 0) for d, a in zip(drift, advantages, strict=True)]
    )


def test_the_parts_of_the_loss_add_up() -> None:
    _, parts = load_algorithm("grpo", {"kl_coef": 0.5, "entropy_coef": 0.1})
    rows = random_rows(1)
    got = metrics_of(parts, rows)
    assert got["loss/total"] == pytest.approx(got["loss/policy"] + got["loss/kl"] + got["loss/entropy"], rel=1e-12)
    entropies = [h for (h,) in flat(rows, "entropy")]
    assert got["loss/entropy"] == pytest.approx(-0.1 * mean(entropies), rel=1e-12)
    assert got["loss/kl"] > 0


def test_what_is_masked_is_counted_with_its_reason() -> None:
    rows = random_rows(2, num=30)
    tokens = sum(len(row.lp) for row in rows)
    _, overlong = load_algorithm("grpo", {"overlong_filter": True})
    cut = sum(len(row.lp) for row in rows if row.truncated)
    got = metrics_of(overlong, rows)
    assert got["masked/overlong"] == pytest.approx(cut / tokens)
    assert got["tokens/trained"] == tokens - cut
    _, stale = load_algorithm("grpo", {"off_policy_delta": 0.02})
    dropped = sum(
        len(row.lp)
        for row in rows
        if row.adv[0] < 0 and mean([g - lp for g, lp in zip(row.gen, row.lp, strict=True)]) > 0.02
    )
    assert metrics_of(stale, rows)["masked/off_policy"] == pytest.approx(dropped / tokens)
    assert dropped > 0
    _, mismatched = load_algorithm(
        "grpo", {"mismatch_level": "token", "mismatch_action": "mask", "mismatch_cap": 1.1, "mismatch_floor": 0.9}
    )
    _, dppo = load_algorithm("dppo", {"threshold_low": 0.03, "threshold_high": 0.02})
    options = dict(dppo.surrogate.options)
    stopped = [beyond(options, lp, old, a) for lp, old, a in flat(rows, "lp", "old", "adv")]
    assert metrics_of(dppo.resolve(9), rows)["masked/stopped"] == pytest.approx(mean([float(s) for s in stopped]))
    assert 0 < sum(stopped) < len(stopped)
    outside = [not 0.9 <= math.exp(old - gen) <= 1.1 for old, gen in flat(rows, "old", "gen")]
    assert metrics_of(mismatched, rows)["masked/mismatch"] == pytest.approx(mean([float(o) for o in outside]))


def test_tokens_at_the_cap_of_the_kl_are_counted() -> None:
    rows = random_rows(6, num=20)
    _, parts = load_algorithm("grpo", {"kl_cap": 0.03})
    beyond = [kl("k3", lp, ref, 0) > 0.03 for lp, ref in flat(rows, "lp", "ref")]
    assert 0 < sum(beyond) < len(beyond)
    assert metrics_of(parts, rows)["kl/capped"] == pytest.approx(mean([float(b) for b in beyond]))
    assert metrics_of(load_algorithm("grpo")[1], rows)["kl/capped"] == 0.0


@pytest.mark.parametrize("scale", [3e-5, 3e-3, 0.3])
def test_quantiles_are_right_to_a_tenth_of_their_logarithm(scale: float) -> None:
    _, parts = load_algorithm("grpo", {"kl_coef": 0})
    r = random.Random(0)
    drift = sorted(r.gauss(0, scale) for _ in range(4000))
    lp = torch.tensor([drift], dtype=torch.float64)
    ones = torch.ones_like(lp)
    inputs = LossInputs(lp, ones, ones, old_logprobs=torch.zeros_like(lp))
    got = solve(parts, inputs).metrics
    for q in (1, 99):
        assert math.log(got[f"ratio/p{q:02d}"]) == pytest.approx(drift[40 * q], rel=0.1)
    assert abs(math.log(got["ratio/p50"])) < 0.1 * scale


def test_on_policy_ratios_are_exactly_1_and_an_engine_that_agrees_is_no_distance_away() -> None:
    _, parts = load_algorithm("grpo", {"kl_coef": 0})
    rows = [dataclasses.replace(row, gen=row.old) for row in random_rows(3, on_policy=True)]
    got = metrics_of(parts, rows)
    assert [got[f"ratio/p{q}"] for q in ("01", "50", "99")] == [1.0, 1.0, 1.0]
    assert got["clip_fraction/low"] == got["clip_fraction/high"] == 0.0
    assert [got[f"mismatch/{name}"] for name in ("abs", "p50", "p90", "p99")] == [0, 0, 0, 0]


def test_what_was_not_observed_is_absent() -> None:
    _, parts = load_algorithm("dapo")
    inputs = pad(random_rows(4)).inputs
    got = solve(parts, dataclasses.replace(inputs, ref_logprobs=None, rollout_logprobs=None, entropy=None)).metrics
    assert not [key for key in got if key.startswith(("kl/", "mismatch/")) or key == "entropy"]


def test_an_update_of_nothing_has_finite_metrics() -> None:
    nothing = torch.zeros(NUM_STATS, dtype=torch.float64)
    assert all(math.isfinite(v) for v in summarize_stats(nothing).values())


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("grpo", math.log(0.8), math.log(1.2)),
        ("gmpo", -0.4, 0.4),
        ("sapo", -math.inf, math.inf),
        ("cispo", -math.inf, math.log(5.0)),
    ],
)
def test_the_range_a_surrogate_leaves_alone(name: str, low: float, high: float) -> None:
    assert clip_range(load_algorithm(name)[1]) == pytest.approx((low, high))
