"""Rows of an older policy: the objective that trains on them, and the metrics that see the engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.train.batches import (
    backend_of,
    distance,
    groups_of,
    parts_of,
    settings_of,
    stale,
    weights,
)
from verizero.pipeline.rl.ratios import proximal
from verizero.pipeline.train.collate import collate
from verizero.pipeline.train.micros import micros_at, row_costs
from verizero.pipeline.train.prepare import BatchStart
from verizero.pipeline.train.step import update
from verizero.pipeline.types import Group

ICEPOP = {"mismatch_level": "token", "mismatch_action": "mask", "mismatch_floor": 0.8, "mismatch_cap": 1.25}


def trained(
    name: str, groups: list[Group], version: int = 3, tokens: int = 40, **params: Any
) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """Metrics and weights after an update of the policy at `version`, on rows of version 3."""
    parts, backend = parts_of(name, **params), backend_of()
    metrics = update(backend, parts, groups, settings_of(parts, tokens, policy_version=version))
    return metrics, weights(backend)


@pytest.mark.parametrize("objective", ["bypass", "decoupled"])
def test_the_engines_error_is_measured_on_fresh_rows_and_never_0_on_stale_ones(objective: str) -> None:
    fresh, _ = trained("dapo", groups_of(), **ICEPOP)
    late, _ = trained("dapo", groups_of(), version=4, mismatch_stale=objective, **ICEPOP)
    assert fresh["mismatch/abs"] > 0.1
    assert (fresh["mismatch/stale"], late["mismatch/stale"]) == (0.0, 1.0)
    assert late["mismatch/stale_abs"] == pytest.approx(fresh["mismatch/abs"], rel=1e-12)
    # No row is fresh, so the engine's error alone cannot be told: its metrics are absent, not 0.
    assert not {"mismatch/abs", "mismatch/k3", "mismatch/p99"} & late.keys()
    assert "mismatch/stale_abs" not in fresh


def test_decoupled_a_stale_row_is_corrected_as_a_fresh_one_is() -> None:
    """The ratio of the first update is 1 there, and the weight is the trainer's policy against what sampled."""
    fresh, wanted = trained("dapo", groups_of(), **ICEPOP)
    late, got = trained("dapo", groups_of(), version=4, mismatch_stale="decoupled", **ICEPOP)
    assert late["masked/mismatch"] == fresh["masked/mismatch"] > 0
    assert distance(wanted, got) == 0.0
    bypassed, other = trained("dapo", groups_of(), version=4, mismatch_stale="bypass", **ICEPOP)
    assert bypassed["masked/mismatch"] == 0.0
    assert bypassed["ratio/p99"] > 1.5
    assert distance(wanted, other) > 1e-6


def test_gspo_one_update_late_clips_tokens_only_without_the_decoupled_ratio() -> None:
    params: dict[str, Any] = {"mismatch_level": "token"}
    clipped = {}
    for objective in ("bypass", "decoupled"):
        metrics, _ = trained("gspo", groups_of(), version=4, mismatch_stale=objective, **params)
        clipped[objective] = metrics["clip_fraction/low"] + metrics["clip_fraction/high"]
    assert clipped["bypass"] > 0.1
    assert clipped["decoupled"] == 0.0


@pytest.mark.parametrize(
    "params",
    [
        {"mismatch_stale": "decoupled", "mismatch_level": "token", "num_minibatches": 2},
        {"mismatch_stale": "decoupled", "mismatch_level": "geometric", "mismatch_normalize": True},
        {"mismatch_stale": "decoupled", "mismatch_m2": 0.5},
        {"mismatch_stale": "decoupled", "mismatch_level": "token", "num_minibatches": 2, "mismatch_prox": "loglinear"},
        {"mismatch_stale": "bypass", "mismatch_reject": {"mean_k1": 0.5}},
    ],
)
def test_micro_batches_change_nothing(params: dict[str, Any]) -> None:
    groups = stale(stale(groups_of(), 2, 1, version=2), 0, 0, version=1)
    whole, wanted = trained("grpo", groups, tokens=10_000, **params)
    assert whole["rows/off_policy"] == 2.0
    for tokens in (1, 40):
        metrics, got = trained("grpo", groups, tokens=tokens, **params)
        assert distance(got, wanted) < 1e-6
        assert metrics == pytest.approx(whole, rel=1e-5, abs=1e-6)


def test_m2po_and_normalised_weights_act_on_the_batch() -> None:
    loose, _ = trained("grpo", groups_of(), mismatch_m2=1e3)
    tight, _ = trained("grpo", groups_of(), mismatch_m2=0.5)
    assert loose["masked/second_moment"] == 0.0
    assert 0.1 < tight["masked/second_moment"] < 1.0
    plain, _ = trained("grpo", groups_of(), kl_coef=0.0, mismatch_level="geometric")
    scaled, _ = trained("grpo", groups_of(), kl_coef=0.0, mismatch_level="geometric", mismatch_normalize=True)
    assert plain["loss/policy"] != pytest.approx(scaled["loss/policy"], rel=1e-3)


@pytest.mark.parametrize(
    ("reason", "params"),
    [
        ("rejected", {"mismatch_reject": {"max_k2": 0.5}}),
        ("rejected", {"mismatch_reject": {"token_k1": 0.5}, "num_minibatches": 2}),
        ("rejected", {"mismatch_reject": {"sum_k1": 1.0}, "mismatch_level": "token"}),
        ("second_moment", {"mismatch_m2": 0.5}),
        ("second_moment", {"mismatch_m2": 0.5, "num_epochs": 2}),
        ("second_moment", {"mismatch_m2": 0.5, "mismatch_level": "geometric", "mismatch_normalize": True}),
    ],
)
@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_what_drops_tokens_judges_stale_rows_whatever_their_ratio(
    name: str, reason: str, params: dict[str, Any]
) -> None:
    dropped = {
        objective: trained(name, groups_of(), version=4, mismatch_stale=objective, **params)[0][f"masked/{reason}"]
        for objective in ("bypass", "decoupled")
    }
    assert dropped["bypass"] == pytest.approx(dropped["decoupled"], abs=0.05)
    assert dropped["bypass"] > 0.1
    if params.keys() & {"num_minibatches", "num_epochs"} == set():
        assert dropped["bypass"] == dropped["decoupled"]


def test_the_approximated_policy_lies_between_its_ends() -> None:
    sampled, current = torch.randn(2, 5, dtype=torch.float64) - 2, torch.randn(2, 5, dtype=torch.float64) - 2
    share = torch.tensor([0.25, 0.25], dtype=torch.float64)
    assert torch.allclose(proximal("loglinear", sampled, current, share), 0.75 * sampled + 0.25 * current)
    assert torch.allclose(
        proximal("linear", sampled, current, share).exp(), 0.75 * sampled.exp() + 0.25 * current.exp()
    )
    for method in ("loglinear", "linear"):
        for end, at in ((sampled, 0.0), (current, 1.0)):
            assert torch.allclose(proximal(method, sampled, current, torch.full((2,), at)), end)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["loglinear", "linear"])
def test_an_approximation_saves_the_forward_and_is_exact_at_the_first_update(method: str) -> None:
    groups = stale(groups_of(), 0, 0, version=2)
    params: dict[str, Any] = {"mismatch_stale": "decoupled", "mismatch_level": "token", "num_minibatches": 2}
    calls = {}
    for prox in ("recompute", method):
        parts, backend = parts_of("grpo", kl_coef=0.0, mismatch_prox=prox, **params), backend_of()
        forward, count = backend.logprobs, []
        backend.logprobs = lambda *a, f=forward, c=count, **k: (c.append(1), f(*a, **k))[1]  # type: ignore[method-assign,misc]
        metrics = update(backend, parts, groups, settings_of(parts, 10_000))
        calls[prox] = (len(count), metrics["updates"])
    assert calls[method][0] < calls["recompute"][0]
    batch = collate(groups, 0)
    (micro,) = micros_at(batch, [[0, 1]], row_costs(batch), 10_000)  # of versions 2 and 3, under policy 3
    now = torch.full(micro.batch.response_mask.shape, -1.5)
    start, settings = BatchStart(None, None, None, None, None), settings_of(parts)
    first, half = (start.old_logprobs_of(parts, settings, micro, now, share) for share in (0.0, 0.5))
    assert first is not None
    assert half is not None
    assert torch.equal(first, now)
    assert torch.allclose(half, proximal(method, micro.batch.rollout_logprobs, now, torch.tensor([2 / 3, 0.0])))  # type: ignore[arg-type]


def test_a_batch_of_one_update_needs_no_forward_of_its_own() -> None:
    parts, backend = parts_of("grpo", kl_coef=0.0, mismatch_stale="decoupled", mismatch_level="token"), backend_of()
    forward, count = backend.logprobs, []
    backend.logprobs = lambda *a, **k: (count.append(1), forward(*a, **k))[1]  # type: ignore[method-assign,misc]
    update(backend, parts, groups_of(), settings_of(parts, 10_000, policy_version=4))
    assert len(count) == 1
