"""AdamW by hand, with float32 masters of a policy in bfloat16, and with moments in 8 bits: updates, bytes, a break."""

import sys
from zipfile import ZipFile

import pytest
import torch

from tests.models.families import build
from tests.train.batches import backend_of, policy
from verizero.pipeline.config.sections import OptimizerConfig
from verizero.pipeline.errors import CheckpointError, ConfigError
from verizero.pipeline.models import quantized
from verizero.pipeline.models.load import load_model
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.optimizer import MasterAdamW, Masters, check_kinds, schedule

HALF = torch.bfloat16


def half_backend(config, folder):
    """A backend of a policy that was loaded in bfloat16, as runs load it."""
    policy(dtype=torch.float32).save_pretrained(folder / "start")
    backend = Backend(load_model(str(folder / "start"), "bfloat16"))
    backend.start(config, 10)
    return backend


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, None), (torch.float64, 0.3), (HALF, 0.5)], ids=str)
def test_updates_are_adamws_by_hand(dtype, limit, tmp_path):
    """In bfloat16 gradients are added up exactly, clipped, and move masters, which are rounded to the weights."""
    config = OptimizerConfig(
        learning_rate=0.01, schedule="linear", warmup_steps=2, weight_decay=0.1, max_grad_norm=limit
    )
    backend = half_backend(config, tmp_path) if dtype == HALF else backend_of(optimizer=config)
    names = [n for n, _ in backend.model.named_parameters()]
    name, weight = next((n, p) for n, p in backend.model.named_parameters() if p.dim() == 2)
    w = weight.detach().double().clone()
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    optimizer, draw = backend.policy.optimizer, torch.Generator().manual_seed(0)
    assert isinstance(optimizer, MasterAdamW) == (dtype == HALF)
    for t in range(6):
        pieces = [torch.randn(w.shape, generator=draw).to(dtype) for _ in range(4)]
        for piece in pieces:
            backend.backward((weight * piece).sum())
        g = sum(piece.double() for piece in pieces)
        rate, (b1, b2), norm = schedule(config, t, 10), config.betas, float(g.norm())
        assert backend.step() == pytest.approx({"grad_norm": norm, "learning_rate": rate}, rel=1e-6)
        g = g if limit is None else g * min(1.0, limit / (norm + 1e-6))
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        w = w * (1 - rate * 0.1)
        w = w - rate * (m / (1 - b1 ** (t + 1))) / ((v / (1 - b2 ** (t + 1))).sqrt() + config.eps)
        master = optimizer.masters[names.index(name)] if dtype == HALF else weight
        torch.testing.assert_close(master.double(), w, rtol=0, atol=1e-6 if dtype == HALF else 1e-9)
        assert torch.equal(weight, master.to(dtype))
    backend.backward(weight.sum())
    backend.discard()
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    assert all(p.grad is None for p in (*trained, *backend.model.parameters())), "and a discard forgets them"


def test_the_next_stage_takes_the_gradients_over(tmp_path):
    backend = half_backend(OptimizerConfig(learning_rate=0.1), tmp_path)
    first = backend.policy.optimizer
    backend.start(OptimizerConfig(learning_rate=0.1), 3)
    backend.backward(next(backend.model.parameters()).sum())
    assert all(m.grad is None for m in first.masters)
    assert backend.policy.optimizer.masters[0].grad is not None


def test_a_state_without_masters_is_refused(tmp_path):
    backend = half_backend(OptimizerConfig(learning_rate=0.1), tmp_path)
    backend.save(tmp_path, lambda model, folder: model.save_pretrained(folder))
    state = torch.load(tmp_path / "trainer.pt", weights_only=True)
    del state["policy"]["optimizer"]["masters"]
    torch.save(state, tmp_path / "trainer.pt")
    with pytest.raises(CheckpointError, match="no float32 masters of these weights"):
        backend.load(tmp_path)


def test_a_reward_model_in_bfloat16_has_masters_too():
    model = Backend(policy(dtype=HALF)).reward_model(OptimizerConfig(learning_rate=1e-6), 10)
    model.update([((3, 4, 5), (3, 6)), ((4, 5), (7, 8, 3))])
    assert isinstance(optimizer := model.trained.optimizer, MasterAdamW)
    assert any(not torch.equal(m, p.float()) for m, p in zip(optimizer.masters, optimizer.parameters, strict=True))


CONFIG = OptimizerConfig.model_validate({"kind": "adamw_8bit", "learning_rate": 1e-3, "weight_decay": 0.1})
SIZES = {
    "vocab_size": 100,
    "num_key_value_heads": 2,
    "num_attention_heads": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
}
"""Matrices of 4,096 numbers and more: smaller tensors keep float32 moments."""


def started(folder, dtype, config=CONFIG):
    backend = Backend(load_model(str(folder), dtype))
    backend.start(config, 10)
    return backend


def train(backend, steps):
    for step in steps:
        ids = torch.randint(2, 20, (2, 9), generator=torch.Generator().manual_seed(step))
        where = torch.ones(ids.shape, dtype=torch.bool)
        where[:, 0] = False
        backend.backward(-backend.logprobs(ids, where, 1.0, entropy=False)[0].sum())
        backend.step()


def weights(backend):
    return [p.detach().clone() for p in backend.model.parameters()]


def tensors(folder):
    """The bytes of the trainer's tensors in a checkpoint, in the file's order."""
    with ZipFile(folder / "trainer.pt") as file:
        return [file.read(name) for name in file.namelist() if "/data/" in name]


@pytest.mark.run
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_break_changes_no_byte(dtype, tmp_path):
    build("qwen2", SIZES, 0, torch.float32).save_pretrained(tmp_path / "start")
    straight, broken = (started(tmp_path / "start", dtype) for _ in range(2))
    train(straight, range(4))
    train(broken, range(2))
    folders = tmp_path / "broken", tmp_path / "straight", tmp_path / "again"
    for folder in folders:
        folder.mkdir()

    def save(backend, folder):
        backend.save(folder, lambda model, place: model.save_pretrained(place))

    save(broken, folders[0])
    again = Backend(load_model(str(folders[0] / "model"), dtype))
    again.load(folders[0])
    train(again, range(2, 4))
    assert all(map(torch.equal, weights(again), weights(straight)))
    save(straight, folders[1])
    save(again, folders[2])
    assert tensors(folders[1]) == tensors(folders[2])
    assert isinstance(again.policy.optimizer, Masters) == (dtype == "bfloat16")


@pytest.mark.run
def test_updates_are_adamws_but_for_the_rounding_of_moments(tmp_path):
    """A constant gradient: blocks of equal moments are exact in 8 bits, so each update is that of float32 moments."""
    build("qwen2", SIZES, 0, torch.float32).save_pretrained(tmp_path)
    plain = CONFIG.model_copy(update={"kind": "adamw"})
    both = [started(tmp_path, "float32", config) for config in (CONFIG, plain)]
    for _ in range(3):
        for backend in both:
            backend.backward(sum(p.sum() for p in backend.model.parameters()))
            backend.step()
    for ours, theirs in zip(*map(weights, both), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    eight = both[0].policy.optimizer
    for p, state in eight.state.items():
        numbers = sum(state[name].nbytes for name in ("state1", "state2", "absmax1", "absmax2") if name in state)
        is_wide = p.numel() < 4096 or p is both[0].model.get_input_embeddings().weight
        assert numbers == (8 * p.numel() if is_wide else 2 * p.numel() + 8 * -(-p.numel() // 256))


def test_a_machine_that_lacks_what_it_needs_is_told(monkeypatch):
    check_kinds(["adamw", "adamw_8bit"], "cpu")
    with pytest.raises(ConfigError, match=r"paged_adamw_8bit moves .* 'cpu'; set optimizer.kind: adamw_8bit"):
        check_kinds(["paged_adamw_8bit"], "cpu")
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    quantized._library.cache_clear()
    check_kinds(["adamw"], "cpu")
    with pytest.raises(ConfigError, match=r"optimizer.kind=adamw_8bit needs bitsandbytes.*\.\[quantized\]"):
        check_kinds(["adamw_8bit"], "cpu")
    quantized._library.cache_clear()


def test_no_program_of_the_hub_is_asked_for(monkeypatch):
    """On processors with bfloat16 the library takes a kernel from the hub where `kernels` is installed."""
    kernels = object()
    monkeypatch.setitem(sys.modules, "kernels", kernels)
    quantized._library.cache_clear()
    quantized.library("x")
    assert sys.modules["kernels"] is kernels
