"""Our loss and gradient against TRL's own `GRPOTrainer._compute_loss`, and what we do otherwise, both pinned."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.oracles.rl_batches import solve
from tests.trl_classes import trl_class
from verizero.pipeline.algorithms.base import load_algorithm
from verizero.pipeline.rl.corrections import off_policy_keep
from verizero.pipeline.rl.loss import LossInputs
from verizero.pipeline.rl.parts import Parts
from verizero.pipeline.rl.selection import top_share

LONGEST = 8
ROWS = 6


def batch(seed: int, drift: float = 0.4) -> LossInputs:
    """Random rows of unequal lengths, left-aligned as TRL has them, in float64."""
    g = torch.Generator().manual_seed(seed)

    def noise() -> Tensor:
        return torch.randn(ROWS, LONGEST, generator=g, dtype=torch.float64)

    lengths = torch.randint(1, LONGEST + 1, (ROWS,), generator=g)
    lp = -noise().abs()
    return LossInputs(
        logprobs=lp,
        advantages=torch.randn(ROWS, 1, generator=g, dtype=torch.float64).expand(ROWS, LONGEST),
        response_mask=(torch.arange(LONGEST) < lengths[:, None]).float(),
        old_logprobs=lp + drift * noise(),
        ref_logprobs=lp + 0.4 * noise(),
        rollout_logprobs=lp + 0.4 * noise(),
        entropy=noise().abs(),
    )


SETTINGS: dict[str, Any] = {
    "epsilon_low": 0.2,
    "epsilon_high": 0.2,
    "beta": 0.0,
    "loss_type": "grpo",
    "importance_sampling_level": "token",
    "off_policy_mask_threshold": None,
    "top_entropy_quantile": 1.0,
    "delta": None,
    "use_bias_correction_kl": False,
    "entropy_coef": 0.0,
}
IN_ARGS = (
    *("delta", "use_bias_correction_kl", "sapo_temperature_pos", "sapo_temperature_neg"),
    *("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"),
)


def theirs(inputs: LossInputs, kind: str = "GRPOTrainer", **given: Any) -> tuple[float, Tensor]:
    """(loss, gradient) of TRL's own code on a trainer that was never set up: only its attributes are there."""
    options = {**SETTINGS, **given}
    trainer = object.__new__(trl_class(kind))
    lp = inputs.logprobs.clone().requires_grad_()
    trainer.args = SimpleNamespace(
        **{k: options.get(k) for k in IN_ARGS}, loss_type=options["loss_type"], steps_per_generation=1
    )
    for key in SETTINGS.keys() - set(IN_ARGS):
        setattr(trainer, key, options[key])
    trainer.accelerator = SimpleNamespace(
        num_processes=1,
        gather=lambda x: x,
        reduce=lambda x, reduction: x,
        pad_across_processes=lambda x, dim, pad_index: x,
        sync_gradients=True,
    )
    trainer.model = SimpleNamespace(training=True)
    trainer.current_gradient_accumulation_steps = 1
    trainer.max_completion_length = LONGEST
    trainer.aux_loss_enabled = False
    trainer.use_adaptive_entropy = False
    trainer._entropy_bonus_enabled = options["entropy_coef"] != 0
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = "importance_sampling_ratio" in options
    trainer._metrics = {"train": defaultdict(list)}
    trainer._get_per_token_logps_and_entropies = lambda *a, **k: (lp, inputs.entropy, None)
    ids = torch.zeros(ROWS, LONGEST, dtype=torch.long)
    mask = inputs.response_mask.double()
    fed = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1] + 1,
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": inputs.advantages[:, 0],
        "old_per_token_logps": inputs.old_logprobs,
        "ref_per_token_logps": inputs.ref_logprobs,
        "num_items_in_batch": mask.sum(),
        "sampling_per_token_logps": inputs.rollout_logprobs,
    }
    if "importance_sampling_ratio" in options:
        fed["importance_sampling_ratio"] = options["importance_sampling_ratio"]
    loss = trainer._compute_loss(None, fed)
    loss.backward()
    return float(loss.detach()), lp.grad


def ours(parts: Parts, inputs: LossInputs) -> tuple[float, Tensor]:
    return solve(parts, inputs)[:2]


def chosen(name: str, **params: Any) -> Parts:
    return load_algorithm(name, params)[1].resolve(LONGEST)


TIGHT = {"epsilon_low": 3e-4, "epsilon_high": 4e-4}
AGREE: dict[str, tuple[Parts, dict[str, Any]]] = {
    "grpo": (chosen("grpo"), {"beta": 0.04}),
    "grpo_no_kl": (chosen("grpo", kl_coef=0), {}),
    "grpo_k3": (chosen("grpo", kl_coef=1.0), {"beta": 1.0}),
    "grpo_unbiased_kl": (
        chosen("grpo", kl_form="k3_unbiased", kl_coef=1.0),
        {"beta": 1.0, "use_bias_correction_kl": True},
    ),
    "dr_grpo": (chosen("dr_grpo"), {"loss_type": "dr_grpo"}),
    "dapo": (chosen("dapo"), {"loss_type": "dapo", "epsilon_high": 0.28}),
    # theirs caps at epsilon_high itself, ours at 1 + clip_high
    "cispo": (chosen("cispo", clip_high=0.5), {"loss_type": "cispo", "epsilon_high": 1.5}),
    "gspo": (chosen("gspo"), {"importance_sampling_level": "sequence", **TIGHT}),
    "sapo": (chosen("sapo"), {"loss_type": "sapo", "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05}),
    "luspo": (chosen("luspo"), {"loss_type": "luspo", "importance_sampling_level": "sequence", **TIGHT}),
    "vespo": (
        chosen("vespo"),
        {
            "loss_type": "vespo",
            "vespo_k_pos": 2.0,
            "vespo_lambda_pos": 3.0,
            "vespo_k_neg": 3.0,
            "vespo_lambda_neg": 2.0,
        },
    ),
    "two_sided": (
        chosen(
            "custom",
            advantage="group_norm",
            ratio="token",
            surrogate={"name": "two_sided", "delta": 1.3},
            aggregate="sequence_mean_token_mean",
        ),
        {"delta": 1.3},
    ),
    "off_policy_mask": (chosen("grpo", kl_coef=0, off_policy_delta=0.05), {"off_policy_mask_threshold": 0.05}),
    "off_policy_mask_with_kl": (
        chosen("grpo", off_policy_delta=0.05),
        {"off_policy_mask_threshold": 0.05, "beta": 0.04},
    ),
    "entropy_bonus": (chosen("dr_grpo", entropy_coef=0.1), {"loss_type": "dr_grpo", "entropy_coef": 0.1}),
}


def agree(parts: Parts, inputs: LossInputs, kind: str = "GRPOTrainer", **options: Any) -> None:
    value, grad = ours(parts, inputs)
    expected, slope = theirs(inputs, kind, **options)
    assert value == pytest.approx(expected, rel=1e-5, abs=1e-9)
    assert torch.allclose(grad, slope, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("name", AGREE)
def test_loss_and_gradient_are_trls(name: str) -> None:
    for seed in range(5):
        parts, options = AGREE[name]
        agree(parts, batch(seed, drift=1e-3 if parts.ratio == "sequence" else 0.4), **options)


@pytest.mark.parametrize("seed", range(5))
def test_gmpo_is_trls(seed: int) -> None:
    agree(chosen("gmpo"), batch(seed), "experimental.gmpo.GMPOTrainer", epsilon_low=0.4, epsilon_high=0.4)


@pytest.mark.parametrize("seed", range(5))
def test_truncated_importance_sampling_is_trls_given_its_weights(seed: int) -> None:
    inputs = batch(seed)
    weights = (inputs.old_logprobs - inputs.rollout_logprobs).exp().clamp(max=1.5)
    parts = chosen("dapo", mismatch_level="token", mismatch_cap=1.5)
    agree(parts, inputs, loss_type="dapo", epsilon_high=0.28, importance_sampling_ratio=weights)


@pytest.mark.parametrize("seed", range(5))
def test_the_off_policy_mask_is_trls(seed: int) -> None:
    x = batch(seed)
    expected = trl_class("GRPOTrainer").get_off_policy_mask(
        x.advantages[:, :1], x.logprobs, x.rollout_logprobs, x.response_mask.double(), 0.05
    )
    mask = x.response_mask > 0
    safe = torch.where(mask, x.logprobs, 0.0), torch.where(mask, x.rollout_logprobs, 0.0)
    found = off_policy_keep(*safe, x.advantages, mask, 0.05)
    assert torch.equal(found[:, :1].double(), expected)


def test_a_sequence_at_the_threshold_is_kept_by_both() -> None:
    mask = torch.ones(1, 2, dtype=torch.float64)
    lp, gen, adv = -mask, -0.5 * mask, -mask
    assert bool(trl_class("GRPOTrainer").get_off_policy_mask(adv[:, :1], lp, gen, mask, 0.5).all())
    assert bool(off_policy_keep(lp, gen, adv, mask > 0, 0.5).all())
    assert not bool(off_policy_keep(lp, gen, adv, mask > 0, 0.49).any())


def test_gspo_under_trls_default_loss_is_not_the_papers_and_ours_needs_asking() -> None:
    """TRL's default `dapo` sums the one value of a response over its tokens: long responses weigh more."""
    inputs = batch(0, drift=1e-3)
    paper = chosen("gspo")
    weighted = dataclasses.replace(paper, aggregate="token_mean", allow=frozenset({"sequence_ratio_token_mean"}))
    value, _ = theirs(inputs, loss_type="dapo", importance_sampling_level="sequence", **TIGHT)
    assert ours(weighted, inputs)[0] == pytest.approx(value, rel=1e-5)
    assert ours(paper, inputs)[0] != pytest.approx(value, rel=1e-2)


def test_the_unbiased_kl_of_trl_takes_the_sequence_ratio_in_gspo_ours_stays_per_token() -> None:
    """The paper's ratio is per token; TRL reuses whatever ratio the surrogate has."""
    inputs = batch(1, drift=0.4)
    wide = {"clip_low": 0.2, "clip_high": 0.2, "allow": ("wide_sequence_clip",)}
    parts = chosen("gspo", kl_in="loss", kl_form="k3_unbiased", kl_coef=1.0, **wide)
    value, _ = theirs(inputs, importance_sampling_level="sequence", beta=1.0, use_bias_correction_kl=True)
    mask = inputs.response_mask.double()
    lengths = mask.sum(1, keepdim=True)
    d = inputs.ref_logprobs - inputs.logprobs
    drift = inputs.logprobs - inputs.old_logprobs
    k3 = (d.exp() - d - 1) * mask / lengths
    per_token = (drift.exp() * k3).sum() / ROWS
    per_sequence = (((drift * mask).sum(1, keepdim=True) / lengths).exp() * k3).sum() / ROWS
    assert abs(float(per_token - per_sequence)) > 1e-3
    assert ours(parts, inputs)[0] - value == pytest.approx(float(per_token - per_sequence), rel=1e-6)


def test_a_response_without_tokens_counts_in_trls_mean_and_not_in_ours() -> None:
    """A row that pads a micro-batch must not change the loss, so here it counts nowhere."""
    inputs = batch(2)
    mask = inputs.response_mask.clone()
    mask[0] = 0
    inputs = dataclasses.replace(inputs, response_mask=mask)
    value, _ = theirs(inputs, beta=0.04)
    assert ours(chosen("grpo"), inputs)[0] == pytest.approx(value * ROWS / (ROWS - 1), rel=1e-6)


def test_cispos_cap_is_absolute_in_trl() -> None:
    inputs = batch(3)
    same_number = theirs(inputs, loss_type="cispo", epsilon_high=0.5)[0]
    assert ours(chosen("cispo", clip_high=0.5), inputs)[0] != pytest.approx(same_number, rel=1e-2)


def test_high_entropy_tokens_are_trls_but_for_the_interpolated_threshold() -> None:
    """TRL interpolates between two entropies and may keep one token fewer; the others are the same."""
    trainer = object.__new__(trl_class("GRPOTrainer"))
    trainer.accelerator = SimpleNamespace(gather=lambda x: x, pad_across_processes=lambda x, dim, pad_index: x)
    more = 0
    for seed in range(20):
        x = batch(seed)
        expected = trainer.get_high_entropy_mask(x.entropy, x.response_mask, 1 - 0.2)
        found = top_share(x.entropy, x.response_mask > 0, 0.2)
        assert bool((found | ~expected).all())
        assert int(found.sum()) - int(expected.sum()) in (0, 1)
        more += int(found.sum()) - int(expected.sum())
    assert more > 0
