"""Float32 masters of a policy in bfloat16: its updates, its gradients, and a break."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.batches import backend_of, groups_of, parts_of, policy, settings_of, weights
from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.errors import CheckpointError
from verizero.pipeline.models.load import load_model
from verizero.pipeline.train.optimizer import MasterAdamW, schedule
from verizero.pipeline.train.reward_model import RewardModel
from verizero.pipeline.train.step import update
from verizero.pipeline.train.torch_backend import TorchBackend

HALF = torch.bfloat16


def half_backend(config: OptimizerConfig, folder: Path) -> TorchBackend:
    """A backend of a policy that was loaded in bfloat16, as runs load it."""
    policy(dtype=torch.float32).save_pretrained(folder / "start")
    backend = TorchBackend(load_model(str(folder / "start"), "bfloat16"))
    backend.start(config, 10)
    return backend


def test_updates_are_adamws_in_float64_rounded_to_bfloat16(tmp_path: Path) -> None:
    """By hand: several gradients in bfloat16 are added up exactly, clipped, and move weights in float64."""
    config = OptimizerConfig(learning_rate=3e-4, schedule="linear", weight_decay=0.1, max_grad_norm=0.5)
    backend = half_backend(config, tmp_path)
    name, weight = next((n, p) for n, p in backend.model.named_parameters() if p.dim() == 2)
    w = weight.detach().double()
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    draw = torch.Generator().manual_seed(0)
    for t in range(6):
        pieces = [torch.randn(w.shape, generator=draw).to(HALF) for _ in range(4)]
        for piece in pieces:
            backend.backward((weight * piece).sum())
        g = sum(piece.double() for piece in pieces)
        assert isinstance(g, torch.Tensor)
        seen = backend.step()
        assert seen["grad_norm"] == pytest.approx(float(g.norm()), rel=1e-6)
        g = g * min(1.0, 0.5 / (float(g.norm()) + 1e-6))
        rate, (b1, b2) = schedule(config, t, 10), config.betas
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        w = w * (1 - rate * 0.1) - rate * (m / (1 - b1 ** (t + 1))) / ((v / (1 - b2 ** (t + 1))).sqrt() + config.eps)
        assert isinstance(backend.optimizer, MasterAdamW)
        master = backend.optimizer.masters[[n for n, _ in backend.model.named_parameters()].index(name)]
        torch.testing.assert_close(master.double(), w, rtol=0, atol=1e-6)
        assert torch.equal(weight, master.to(HALF))
    assert weight.dtype == HALF


def test_small_updates_add_up(tmp_path: Path) -> None:
    """50 steps of 1e-6 move a weight by 5e-5: each is lost in bfloat16, together they are seen in small weights."""
    backend = half_backend(OptimizerConfig(learning_rate=1e-6, max_grad_norm=None), tmp_path)
    before = weights(backend)
    for _ in range(50):
        backend.backward(sum(p.sum() for p in backend.model.parameters()))  # type: ignore[arg-type]
        backend.step()
    assert isinstance(backend.optimizer, MasterAdamW)
    starts = [w.float() for n, w in before.items() if n in dict(backend.model.named_parameters())]
    for start, master in zip(starts, backend.optimizer.masters, strict=True):
        # Within half a step of float32 at each addition.
        assert float((start - master - 50e-6).abs().max()) < 50 * 1.2e-7


def test_gradients_add_up_in_float32_and_are_forgotten(tmp_path: Path) -> None:
    backend = half_backend(OptimizerConfig(learning_rate=0.1), tmp_path)
    weight = next(backend.model.parameters())
    for factor in (1.0, *([1 / 512] * 32)):
        backend.backward(weight[0, 0] * factor)
    assert weight.grad is None
    assert backend.step()["grad_norm"] == pytest.approx(1 + 32 / 512)
    backend.backward(weight.sum())
    backend.discard()
    assert backend.optimizer is not None
    assert all(p.grad is None for group in backend.optimizer.param_groups for p in group["params"])


def test_the_next_stage_takes_the_gradients_over(tmp_path: Path) -> None:
    backend = half_backend(OptimizerConfig(learning_rate=0.1), tmp_path)
    first = backend.optimizer
    backend.start(OptimizerConfig(learning_rate=0.1), 3)
    backend.backward(next(backend.model.parameters()).sum())
    assert isinstance(first, MasterAdamW)
    assert isinstance(backend.optimizer, MasterAdamW)
    assert all(m.grad is None for m in first.masters)
    assert backend.optimizer.masters[0].grad is not None


def train(backend: TorchBackend, parts: Any, steps: range) -> None:
    for step in steps:
        update(backend, parts, groups_of(seed=step), settings_of(parts, 120, step=step))


@pytest.mark.integration
@pytest.mark.parametrize("shared", [None, True, False])
def test_a_break_changes_no_bit(shared: bool | None, tmp_path: Path) -> None:
    config = OptimizerConfig(learning_rate=1e-4, weight_decay=0.1)
    parts = parts_of("grpo" if shared is None else "ppo")

    def begun(folder: Path) -> TorchBackend:
        folder.mkdir()
        backend = half_backend(config, folder)
        backend.refresh_reference()
        if shared is not None:
            backend.start_critic(shared, config, 10)
        return backend

    straight, broken = begun(tmp_path / "a"), begun(tmp_path / "b")
    train(straight, parts, range(4))
    train(broken, parts, range(2))
    broken.save(tmp_path, lambda model, folder: model.save_pretrained(folder))
    again = TorchBackend(load_model(str(tmp_path / "model"), "bfloat16"))
    again.load(tmp_path)
    train(again, parts, range(2, 4))
    for ours, theirs in ((again, straight), (again.critic, straight.critic)):
        if ours is None:
            continue
        left, right = ours.optimizer, theirs.optimizer  # type: ignore[union-attr]
        assert isinstance(left, MasterAdamW)
        assert isinstance(right, MasterAdamW)
        assert all(torch.equal(a, b) for a, b in zip(left.masters, right.masters, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(left.parameters, right.parameters, strict=True))
    held = zip(again.optimizer.masters, again.optimizer.parameters, strict=True)  # type: ignore[union-attr]
    assert any(not torch.equal(m, p.float()) for m, p in held), "the masters hold more than the weights"


def test_a_state_without_masters_is_refused(tmp_path: Path) -> None:
    backend = half_backend(OptimizerConfig(learning_rate=0.1), tmp_path)
    backend.save(tmp_path, lambda model, folder: model.save_pretrained(folder))
    state = torch.load(tmp_path / "trainer.pt", weights_only=True)
    del state["optimizer"]["masters"]
    torch.save(state, tmp_path / "trainer.pt")
    with pytest.raises(CheckpointError, match="no float32 masters of these weights"):
        backend.load(tmp_path)


def test_a_reward_model_in_bfloat16_has_masters_too() -> None:
    model = RewardModel.of(policy(dtype=HALF), OptimizerConfig(learning_rate=1e-6), 10, TrainConfig())
    model.update([((3, 4, 5), (3, 6)), ((4, 5), (7, 8, 3))])
    assert isinstance(model.optimizer, MasterAdamW)
    assert any(
        not torch.equal(m, p.float()) for m, p in zip(model.optimizer.masters, model.optimizer.parameters, strict=True)
    )


def test_float32_and_float64_have_none() -> None:
    assert type(backend_of().optimizer) is torch.optim.AdamW
    assert type(backend_of(dtype=torch.float32).optimizer) is torch.optim.AdamW
