"""Objectives that must coincide with one another."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.oracles.rl_batches import pad, random_rows, solve
from tests.rl.variants import LONGEST, variants
from verizero.pipeline.algorithms.base import load_algorithm
from verizero.pipeline.rl.credit import AdvantageInputs, compute_advantages
from verizero.pipeline.rl.loss import LossInputs
from verizero.pipeline.rl.parts import Kl, Masks, Mismatch, Part, Parts, Terms

VARIANTS = variants()
CLIPPED = ("clip", "dual_clip", "two_sided", "cispo", "soft_gate", "geometric_mean", "gamma_weight", "dppo")


def gradient(parts: Parts, inputs: LossInputs) -> Tensor:
    return solve(parts, inputs).gradient


def loss_of(parts: Parts, inputs: LossInputs) -> float:
    return solve(parts, inputs).loss


def bare(parts: Parts) -> Parts:
    """Only the policy term: no KL, masks, weights or entropy."""
    return dataclasses.replace(
        parts,
        kl=Kl(form="k3", where="none"),
        masks=Masks(),
        mismatch=Mismatch(),
        terms=Terms(),
        reference="frozen",
    )


def reinforce_like(parts: Parts) -> Parts:
    """REINFORCE with the same aggregation; a response's one value is the mean over its tokens."""
    aggregate = "sequence_mean_token_mean" if parts.aggregate == "sequence_mean" else parts.aggregate
    return dataclasses.replace(
        parts, ratio="none", surrogate=Part("reinforce"), aggregate=aggregate, advantage=Part("none"), critic=None
    )


CLIPPED_VARIANTS = [
    # the mean by prompt needs the prompts of a batch, which these inputs have not: tests/rl/test_loss.py
    n for n, p in VARIANTS.items() if p.surrogate.name in CLIPPED and p.aggregate != "prompt_mean"
]  # fmt: skip


@pytest.mark.parametrize("name", CLIPPED_VARIANTS)
def test_on_policy_every_clipped_surrogate_has_the_gradient_of_reinforce(name: str) -> None:
    for seed in range(3):
        parts = bare(VARIANTS[name])
        if parts.updates.num_minibatches > 1:
            parts = dataclasses.replace(parts, updates=dataclasses.replace(parts.updates, num_minibatches=1))
        inputs = pad(random_rows(seed, on_policy=True), seed).inputs
        mine, plain = gradient(parts, inputs), gradient(reinforce_like(parts), inputs)
        if parts.ratio == "sequence_product" and parts.surrogate.name == "clip":
            # the product moves by the sum of log-probs where the mean of them would by 1/|y|
            lengths = (inputs.response_mask > 0).sum(1, keepdim=True)
            assert torch.allclose(mine, plain * lengths, rtol=1e-10)
        else:
            assert torch.allclose(mine, plain, rtol=1e-10)
        assert float(plain.abs().sum()) > 0


def test_kimis_first_gradient_is_reinforces_times_2_tau() -> None:
    inputs = pad(random_rows(2, on_policy=True)).inputs
    plain = dataclasses.replace(reinforce_like(VARIANTS["kimi_k2"]), aggregate="sequence_mean_token_sum")
    for tau in (0.5, 0.1):
        _, parts = load_algorithm("kimi_k2", {"tau": tau})
        assert torch.allclose(gradient(parts, inputs), 2 * tau * gradient(plain, inputs), rtol=1e-10)


@pytest.mark.parametrize("drift", [3e-4, 0.3])
def test_gspo_token_is_gspo_where_the_advantage_is_constant(drift: float) -> None:
    inputs = pad(random_rows(3, drift=drift)).inputs
    gspo, token = (solve(VARIANTS[n], inputs) for n in ("gspo", "gspo_token"))
    assert gspo.loss == pytest.approx(token.loss, rel=1e-12)
    assert torch.allclose(gspo.gradient, token.gradient, rtol=1e-10)


def test_gspo_token_differs_where_it_is_not() -> None:
    inputs = pad(random_rows(3, drift=3e-4, per_token=True)).inputs
    assert not torch.allclose(gradient(VARIANTS["gspo"], inputs), gradient(VARIANTS["gspo_token"], inputs), rtol=1e-3)


def scene() -> tuple[AdvantageInputs, LossInputs]:
    inputs = pad(random_rows(4)).inputs
    g = torch.Generator().manual_seed(0)
    rewards = torch.randn(6, generator=g, dtype=torch.float64)
    return AdvantageInputs(rewards, torch.tensor([0, 0, 0, 1, 1, 1]), inputs.response_mask), inputs


def test_ppo_with_lambda_and_gamma_1_and_no_values_is_reinforce_on_policy() -> None:
    batch, inputs = scene()
    batch = dataclasses.replace(batch, values=torch.zeros_like(inputs.advantages))
    _, ppo = load_algorithm("ppo", {"lam": 1.0, "gamma": 1.0, "whiten": False, "kl_coef": 0, "num_minibatches": 1})
    _, plain = load_algorithm("reinforce", {"kl_coef": 0})
    plain = dataclasses.replace(plain, aggregate="token_mean")
    inputs = dataclasses.replace(inputs, old_logprobs=inputs.logprobs.detach())
    grads = []
    for parts in (ppo, plain):
        advantages = compute_advantages(parts, batch).advantages
        grads.append(gradient(parts, dataclasses.replace(inputs, advantages=advantages)))
    assert torch.allclose(grads[0], grads[1], rtol=1e-10)


def equal_lengths(seed: int) -> LossInputs:
    rows = [r for s in range(seed, seed + 60) for r in random_rows(s) if len(r.lp) == 4][:6]
    assert len(rows) == 6
    return pad(rows).inputs


def test_dapo_with_equal_clips_and_equal_lengths_is_grpo() -> None:
    inputs = equal_lengths(0)
    _, dapo = load_algorithm("dapo", {"clip_high": 0.2})
    _, grpo = load_algorithm("grpo", {"kl_coef": 0})
    assert loss_of(dapo, inputs) == pytest.approx(loss_of(grpo, inputs), rel=1e-12)
    assert torch.allclose(gradient(dapo, inputs), gradient(grpo, inputs), rtol=1e-10)
    unequal = pad(random_rows(1)).inputs
    assert loss_of(dapo, unequal) != pytest.approx(loss_of(grpo, unequal), rel=1e-3)


def test_dr_grpo_at_the_longest_length_is_grpo_without_spread_where_all_are_that_long() -> None:
    inputs = equal_lengths(100)
    _, dr_grpo = load_algorithm("dr_grpo")
    _, grpo = load_algorithm("grpo", {"kl_coef": 0, "std": "none"})
    assert loss_of(dr_grpo.resolve(4), inputs) == pytest.approx(loss_of(grpo, inputs), rel=1e-12)
    batch, _ = scene()
    assert torch.allclose(
        compute_advantages(dr_grpo, batch).advantages, compute_advantages(grpo, batch).advantages, rtol=1e-12
    )


def test_luspo_is_gspo_with_each_response_times_its_length() -> None:
    inputs = pad(random_rows(5, drift=3e-4)).inputs
    lengths = (inputs.response_mask > 0).sum(1, keepdim=True)
    weighted = dataclasses.replace(inputs, advantages=inputs.advantages * lengths)
    assert loss_of(VARIANTS["luspo"], inputs) == pytest.approx(loss_of(VARIANTS["gspo"], weighted), rel=1e-12)


def test_wide_bounds_turn_variants_into_the_plain_clip() -> None:
    inputs = pad(random_rows(6)).inputs
    base: dict[str, Any] = {"advantage": "group_norm", "ratio": "token", "aggregate": "token_mean"}
    plain = loss_of(load_algorithm("custom", {**base, "surrogate": "clip"})[1], inputs)
    for surrogate in ({"name": "dual_clip", "dual": 1e6}, {"name": "two_sided", "delta": 1e6}):
        assert loss_of(load_algorithm("custom", {**base, "surrogate": surrogate})[1], inputs) == plain


def test_clip_cov_without_a_selection_is_the_clip_and_kl_cov_the_bare_ratio() -> None:
    inputs = pad(random_rows(7)).inputs
    nothing = dataclasses.replace(inputs, selected=torch.zeros_like(inputs.response_mask))
    _, dapo = load_algorithm("dapo", {"clip_high": 0.2})
    assert loss_of(VARIANTS["clip_cov"], nothing) == loss_of(dapo, dataclasses.replace(nothing, selected=None))
    mask = inputs.response_mask > 0
    ratio = (inputs.logprobs - inputs.old_logprobs).exp().detach()
    expected = -float((ratio * inputs.advantages)[mask].mean())
    assert loss_of(VARIANTS["kl_cov"], nothing) == pytest.approx(expected, rel=1e-12)


def test_leave_one_out_is_the_centred_reward_scaled() -> None:
    batch, _ = scene()
    loo = compute_advantages(load_algorithm("rloo", {"kl_coef": 0})[1], batch).advantages
    mean = compute_advantages(VARIANTS["dr_grpo"], batch).advantages
    assert torch.allclose(loo, mean * 3 / 2, rtol=1e-12)


def test_the_length_of_dr_grpo_is_the_recipes_not_the_batchs() -> None:
    inputs = pad(random_rows(8)).inputs
    wider = pad(random_rows(8), extra=30).inputs
    parts = VARIANTS["dr_grpo"]
    assert parts.norm_length == LONGEST
    assert loss_of(parts, inputs) == pytest.approx(loss_of(parts, wider), rel=1e-12)
