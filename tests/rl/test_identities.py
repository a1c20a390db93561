"""Objectives that must coincide with one another."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from tests.oracles.rl_batches import pad, random_rows, solve
from tests.rl.variants import variants
from verizero.pipeline.algorithms.base import load_algorithm
from verizero.pipeline.rl.credit import AdvantageInputs, compute_advantages
from verizero.pipeline.rl.loss import LossInputs
from verizero.pipeline.rl.parts import Part, Parts, PolicyParams

VARIANTS = variants()
CLIPPED = ("clip", "dual_clip", "two_sided", "cispo", "soft_gate", "geometric_mean", "gamma_weight", "dppo")


def gradient(parts: Parts, inputs: LossInputs) -> Tensor:
    return solve(parts, inputs).gradient


def bare(parts: Parts) -> Parts:
    """Only the policy term: no KL, masks, weights or entropy."""
    return dataclasses.replace(parts, params=PolicyParams(num_minibatches=parts.params.num_minibatches))


def reinforce_like(parts: Parts) -> Parts:
    """REINFORCE with the same aggregation; a response's one value is the mean over its tokens."""
    aggregate = "sequence_mean_token_mean" if parts.aggregate == "sequence_mean" else parts.aggregate
    return dataclasses.replace(
        parts, ratio="none", surrogate=Part("reinforce"), aggregate=aggregate, advantage=Part("none"), critic=None
    )


CLIPPED_VARIANTS = [
    # the mean by prompt needs the prompts of a batch, which these inputs have not: tests/rl/test_loss.py
    n for n, p in VARIANTS.items() if p.surrogate.name in CLIPPED
]  # fmt: skip


@pytest.mark.parametrize("name", CLIPPED_VARIANTS)
def test_on_policy_every_clipped_surrogate_has_the_gradient_of_reinforce(name: str) -> None:
    for seed in range(3):
        parts = bare(VARIANTS[name])
        if parts.params.num_minibatches > 1:
            parts = parts.with_params(num_minibatches=1)
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
