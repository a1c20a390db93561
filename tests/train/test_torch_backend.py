"""The backend: its schedule, its update, and resuming after a break as if there had been none."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.batches import backend_of, distance, groups_of, parts_of, policy, settings_of, weights
from verizero.pipeline.config.sections import OptimizerConfig
from verizero.pipeline.errors import CheckpointError, NonFiniteError, RunError
from verizero.pipeline.models.load import load_model
from verizero.pipeline.models.lora import Adapted
from verizero.pipeline.train import checkpoint
from verizero.pipeline.train.optimizer import schedule
from verizero.pipeline.train.prepare import Controllers
from verizero.pipeline.train.step import update
from verizero.pipeline.train.torch_backend import TorchBackend

ADAPTIVE: dict[str, Any] = {"kl_target": 0.05, "kl_horizon": 50, "allow": ["adaptive_kl_in_loss"]}


def rates(total: int, **changes: Any) -> list[float]:
    config = OptimizerConfig(**{"learning_rate": 8.0, "warmup_steps": 0, **changes})
    return [schedule(config, step, total) for step in range(total + 2)]


def test_a_constant_rate_stays() -> None:
    assert rates(4) == [8.0] * 6


def test_warm_up_is_linear_and_its_first_step_is_not_zero() -> None:
    assert rates(6, warmup_steps=4) == [2.0, 4.0, 6.0, 8.0, 8.0, 8.0, 8.0, 8.0]


def test_a_linear_rate_falls_evenly_to_its_final_share_and_stays() -> None:
    assert rates(4, schedule="linear", final_share=0.5) == [8.0, 7.0, 6.0, 5.0, 4.0, 4.0]
    assert rates(6, schedule="linear", final_share=0.5, warmup_steps=2) == [4.0, 8.0, 8.0, 7.0, 6.0, 5.0, 4.0, 4.0]


def test_a_cosine_rate_is_half_way_at_half_time() -> None:
    found = rates(4, schedule="cosine", final_share=0.0)
    assert found == pytest.approx([8.0, 4 + 4 / math.sqrt(2), 4.0, 4 - 4 / math.sqrt(2), 0.0, 0.0])
    assert rates(2, schedule="cosine", final_share=0.25) == pytest.approx([8.0, 5.0, 2.0, 2.0])


def test_a_stage_shorter_than_its_warm_up_only_warms_up() -> None:
    assert rates(2, warmup_steps=4, schedule="cosine") == [2.0, 4.0, 6.0, 8.0]


def adamw_by_hand(
    config: OptimizerConfig, start: torch.Tensor, gradients: list[torch.Tensor], total: int
) -> torch.Tensor:
    """AdamW of one parameter from its formula, without clipping."""
    w, m, v = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    b1, b2 = config.betas
    for t, g in enumerate(gradients):
        rate = schedule(config, t, total)
        w = w * (1 - rate * config.weight_decay)
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        w = w - rate * (m / (1 - b1 ** (t + 1))) / ((v / (1 - b2 ** (t + 1))).sqrt() + config.eps)
    return w


@pytest.mark.parametrize("limit", [None, 0.3])
def test_updates_are_adamws_after_clipping(limit: float | None) -> None:
    config = OptimizerConfig(
        learning_rate=0.01, schedule="linear", warmup_steps=2, weight_decay=0.1, max_grad_norm=limit
    )
    backend = TorchBackend(policy())
    backend.start(config, 6)
    name, weight = next((n, p) for n, p in backend.model.named_parameters() if p.dim() == 2)
    start = weight.detach().clone()
    gradients = []
    for t in range(4):
        gradient = torch.randn(start.shape, dtype=start.dtype, generator=torch.Generator().manual_seed(t))
        backend.backward((weight * gradient).sum())
        norm = float(gradient.norm())
        gradients.append(gradient if limit is None else gradient * min(1.0, limit / (norm + 1e-6)))
        said = backend.step()
        assert said["grad_norm"] == pytest.approx(norm)
        assert said["learning_rate"] == schedule(config, t, 6)
        assert all(p.grad is None for p in backend.model.parameters())
    wanted = adamw_by_hand(config, start, gradients, 6)
    assert torch.allclose(weights(backend)[name], wanted, atol=1e-9), name


def test_gradients_add_up_until_the_step_and_a_discard_forgets_them() -> None:
    backend = TorchBackend(policy())
    backend.start(OptimizerConfig(learning_rate=0.1), 1)
    weight = next(backend.model.parameters())
    for _ in range(3):
        backend.backward(weight.sum())
    assert weight.grad is not None
    assert bool((weight.grad == 3).all())
    backend.discard()
    assert weight.grad is None


def test_a_refused_update_says_its_number_and_remedy() -> None:
    backend = backend_of()
    weight = next(backend.model.parameters())
    backend.backward((weight * float("nan")).sum())
    with pytest.raises(NonFiniteError, match="nan at update 0; the update was refused"):
        backend.step()


def test_the_reference_is_made_once_then_moves_by_alpha() -> None:
    backend = TorchBackend(policy(0))
    backend.refresh_reference()
    first = weights(backend)
    other = policy(1).state_dict()
    backend.model.load_state_dict(other)
    held = backend.reference.state_dict()
    assert all(torch.equal(held[k], first[k]) for k in first)
    backend.refresh_reference(0.25)
    for k, v in backend.reference.state_dict().items():
        assert torch.allclose(v, 0.25 * other[k] + 0.75 * first[k])
    backend.refresh_reference()
    assert all(torch.equal(v, other[k]) for k, v in backend.reference.state_dict().items())
    assert not any(p.requires_grad for p in backend.reference.parameters())


def test_logprobs_and_entropies_are_those_of_the_distribution() -> None:
    backend = backend_of()
    ids = torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0]])
    where = torch.tensor([[False, True, False, True], [False, True, False, False]])
    for which, model in (("policy", backend.model), ("reference", backend.reference)):
        logprobs, entropy = backend.logprobs(ids, where, 0.7, which, True)  # type: ignore[arg-type]
        assert entropy is not None
        table = (model(input_ids=ids).logits / 0.7).log_softmax(-1)
        for i, t in [(0, 1), (0, 3), (1, 1)]:
            row = table[i, t - 1]
            assert logprobs[i, t].item() == pytest.approx(row[ids[i, t]].item(), abs=1e-9)
            assert entropy[i, t].item() == pytest.approx(-(row.exp() * row).sum().item(), abs=1e-9)
        assert float(logprobs[~where].detach().abs().sum()) == 0.0
        plain, none = backend.logprobs(ids, where, 0.7, which)  # type: ignore[arg-type]
        assert none is None
        assert torch.equal(plain, logprobs)


def save_model(model: Any, folder: Path) -> None:
    model.save_pretrained(folder)


def train(backend: TorchBackend, controllers: Controllers, steps: range) -> None:
    parts = parts_of("grpo", num_minibatches=2, **ADAPTIVE)
    for step in steps:
        update(backend, parts, groups_of(seed=step), settings_of(parts, 120, controllers=controllers, step=step))
        if step == 3:
            backend.refresh_reference(0.5)


@pytest.mark.integration
@pytest.mark.parametrize("broken_at", [0, 1, 3, 4])
def test_training_on_after_a_break_gives_the_same_bits(broken_at: int, tmp_path: Path) -> None:
    """Weights, AdamW's state, schedule, reference and the adaptive KL, in float32 as runs are."""
    config = OptimizerConfig(learning_rate=3e-3, schedule="cosine", warmup_steps=3, weight_decay=0.1)
    parts = parts_of("grpo", num_minibatches=2, **ADAPTIVE)
    straight, kept = backend_of(optimizer=config, dtype=torch.float32), Controllers(parts)
    train(straight, kept, range(6))

    first, coefs = backend_of(optimizer=config, dtype=torch.float32), Controllers(parts)
    train(first, coefs, range(broken_at))

    def write(folder: Path) -> None:
        first.save(folder, save_model)
        (folder / "controllers.json").write_text(json.dumps(coefs.state_dict()))

    checkpoint.save(tmp_path, 1, write, keep=1)
    path = checkpoint.path_of(tmp_path, 1)
    assert checkpoint.damage_of(path) is None
    second = TorchBackend(load_model(str(path / "model")), config=straight.train_config)
    second.load(path)
    again = Controllers(parts)
    again.load_state_dict(json.loads((path / "controllers.json").read_text()))
    train(second, again, range(broken_at, 6))

    assert distance(weights(second), weights(straight)) == 0.0
    assert distance(weights(straight), weights(first)) > 0.0
    for a, b in zip(second.reference.parameters(), straight.reference.parameters(), strict=True):
        assert torch.equal(a, b)
    assert second.optimizer is not None
    assert straight.optimizer is not None
    ours, theirs = second.optimizer.state_dict(), straight.optimizer.state_dict()
    assert ours["param_groups"] == theirs["param_groups"]
    for i, state in theirs["state"].items():
        assert all(torch.equal(ours["state"][i][k], v) for k, v in state.items())
    assert second.num_updates == straight.num_updates == 12
    assert again.state_dict() == kept.state_dict()


def test_a_backend_without_stage_or_reference_comes_back_without(tmp_path: Path) -> None:
    TorchBackend(policy()).save(tmp_path, save_model)
    backend = TorchBackend(policy())
    backend.load(tmp_path)
    assert backend.optimizer is None
    assert backend.reference is None


@pytest.mark.parametrize("with_reference", [True, False])
def test_a_state_of_another_model_is_refused(with_reference: bool, tmp_path: Path) -> None:
    from tests.models.families import build

    backend = backend_of()
    if not with_reference:
        backend.reference = None
    parts = parts_of("dr_grpo")
    update(backend, parts, groups_of(), settings_of(parts))
    backend.save(tmp_path, save_model)
    for changes in ({"hidden_size": 24}, {"hidden_size": 16, "num_hidden_layers": 3}):
        shape = {"num_key_value_heads": 1, "num_attention_heads": 2, **changes}
        other = TorchBackend(build("qwen2", shape, dtype=torch.float64))
        with pytest.raises(CheckpointError, match="does not fit the model"):
            other.load(tmp_path)


def test_a_full_disk_is_told_as_such(tmp_path: Path) -> None:
    """From the system's own error: the optimiser's file is the device that is always full."""
    backend = backend_of()

    def write(folder: Path) -> None:
        (folder / "trainer.pt").symlink_to("/dev/full")
        backend.save(folder, save_model)

    with pytest.raises(RunError, match="disk is full"):
        checkpoint.save(tmp_path, 1, write, keep=1)
    assert list(tmp_path.iterdir()) == []


def test_a_wsd_rate_is_stable_until_its_decay() -> None:
    found = rates(10, schedule="wsd", warmup_steps=2, decay_share=0.4, final_share=0.0)
    assert found == pytest.approx([4.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 6.0, 4.0, 2.0, 0.0, 0.0])
    assert rates(2, schedule="wsd", warmup_steps=4) == [2.0, 4.0, 6.0, 8.0], "warm-up alone"


def adapted_backend(seed: int = 0) -> TorchBackend:
    model = policy(seed, torch.float32)
    return TorchBackend(model, adapted=Adapted(model, 2, 4.0, (), 7))


@pytest.mark.integration
def test_adapters_train_beside_a_frozen_base_that_is_the_reference(tmp_path: Path) -> None:
    """And a break changes no bit, before or after the reference has become a model of its own."""
    config = OptimizerConfig(learning_rate=3e-3)
    base = policy(0, torch.float32).state_dict()
    parts = parts_of("grpo", kl_coef=0.05)

    def steps(backend: TorchBackend, numbers: range) -> list[dict[str, float]]:
        seen = []
        for step in numbers:
            seen.append(update(backend, parts, groups_of(seed=step), settings_of(parts, 120, step=step)))
            if step == 2:
                backend.refresh_reference()
        return seen

    straight = adapted_backend()
    straight.start(config, 5)
    straight.refresh_reference()
    assert straight.reference is straight.adapted
    seen = steps(straight, range(5))
    assert seen[0]["kl/k3"] == pytest.approx(0, abs=1e-7)
    assert seen[1]["kl/k3"] > 1e-7
    assert seen[3]["kl/k3"] == pytest.approx(0, abs=1e-6)
    for name, w in policy(0, torch.float32).named_parameters():
        assert torch.equal(w, base[name])
    for broken_at in (2, 4):
        first = adapted_backend()
        first.start(config, 5)
        first.refresh_reference()
        steps(first, range(broken_at))
        folder = tmp_path / str(broken_at)
        folder.mkdir()
        first.save(folder, save_model)
        again = adapted_backend()
        again.load(folder)
        saved = load_model(str(folder / "model"))
        for name, w in saved.named_parameters():
            assert torch.equal(w, dict(again.whole_model().named_parameters())[name]), name
        assert steps(again, range(broken_at, 5)) == seen[broken_at:]
        for a, b in zip(again.whole_model().parameters(), straight.whole_model().parameters(), strict=True):
            assert torch.equal(a, b)
    moved = dict(straight.whole_model().named_parameters())
    assert any(not torch.equal(w, moved[n]) for n, w in base.items() if n in moved)


def test_the_optimiser_is_fused() -> None:
    assert backend_of().optimizer.defaults["fused"]  # type: ignore[union-attr]


def test_a_checkpoint_of_the_other_backend_is_refused_with_the_way_on(tmp_path: Path) -> None:
    (tmp_path / "deepspeed.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"was not written by train\.backend=torch; .* model\.path: .*/model"):
        TorchBackend(policy()).load(tmp_path)
