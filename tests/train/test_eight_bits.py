"""AdamW with moments in 8 bits, by bitsandbytes: its updates, its bytes, a break, and the machines that lack it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch

from tests.models.families import build
from verizero.pipeline.config.sections import OptimizerConfig
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models import quantized
from verizero.pipeline.models.load import load_model
from verizero.pipeline.train.optimizer import Masters, check_kinds
from verizero.pipeline.train.torch_backend import TorchBackend

CONFIG = OptimizerConfig.model_validate({"kind": "adamw_8bit", "learning_rate": 1e-3, "weight_decay": 0.1})
SIZES = {
    "vocab_size": 100,
    "num_key_value_heads": 2,
    "num_attention_heads": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
}
"""Matrices of 4,096 numbers and more: smaller tensors keep float32 moments."""


def started(folder: Path, dtype: str, config: OptimizerConfig = CONFIG) -> TorchBackend:
    backend = TorchBackend(load_model(str(folder), dtype))
    backend.start(config, 10)
    return backend


def train(backend: TorchBackend, steps: range) -> None:
    for step in steps:
        ids = torch.randint(2, 20, (2, 9), generator=torch.Generator().manual_seed(step))
        where = torch.ones(ids.shape, dtype=torch.bool)
        where[:, 0] = False
        backend.backward(-backend.logprobs(ids, where, 1.0, entropy=False)[0].sum())
        backend.step()


def weights(backend: TorchBackend) -> list[torch.Tensor]:
    return [p.detach().clone() for p in backend.model.parameters()]


def tensors(folder: Path) -> list[bytes]:
    """The bytes of the trainer's tensors in a checkpoint, in the file's order."""
    with ZipFile(folder / "trainer.pt") as file:
        return [file.read(name) for name in file.namelist() if "/data/" in name]


@pytest.mark.integration
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_break_changes_no_byte(dtype: str, tmp_path: Path) -> None:
    build("qwen2", SIZES, 0, torch.float32).save_pretrained(tmp_path / "start")
    straight, broken = (started(tmp_path / "start", dtype) for _ in range(2))
    train(straight, range(4))
    train(broken, range(2))
    folders = tmp_path / "broken", tmp_path / "straight", tmp_path / "again"
    for folder in folders:
        folder.mkdir()

    def save(backend: TorchBackend, folder: Path) -> None:
        backend.save(folder, lambda model, place: model.save_pretrained(place))

    save(broken, folders[0])
    again = TorchBackend(load_model(str(folders[0] / "model"), dtype))
    again.load(folders[0])
    train(again, range(2, 4))
    assert all(map(torch.equal, weights(again), weights(straight)))
    save(straight, folders[1])
    save(again, folders[2])
    assert tensors(folders[1]) == tensors(folders[2])
    assert isinstance(again.optimizer, Masters) == (dtype == "bfloat16")


@pytest.mark.integration
def test_updates_are_adamws_but_for_the_rounding_of_moments(tmp_path: Path) -> None:
    """A constant gradient: blocks of equal moments are exact in 8 bits, so each update is that of float32 moments."""
    build("qwen2", SIZES, 0, torch.float32).save_pretrained(tmp_path)
    plain = CONFIG.model_copy(update={"kind": "adamw"})
    both = [started(tmp_path, "float32", config) for config in (CONFIG, plain)]
    for _ in range(3):
        for backend in both:
            backend.backward(sum(p.sum() for p in backend.model.parameters()))  # type: ignore[arg-type]
            backend.step()
    for ours, theirs in zip(*map(weights, both), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    eight = both[0].optimizer
    assert eight is not None
    for p, state in eight.state.items():
        numbers = sum(state[name].nbytes for name in ("state1", "state2", "absmax1", "absmax2") if name in state)
        is_wide = p.numel() < 4096 or p is both[0].model.get_input_embeddings().weight
        assert numbers == (8 * p.numel() if is_wide else 2 * p.numel() + 8 * -(-p.numel() // 256))


def test_a_machine_that_lacks_what_it_needs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    check_kinds(["adamw", "adamw_8bit"], "cpu")
    with pytest.raises(ConfigError, match=r"paged_adamw_8bit moves .* 'cpu'; set optimizer.kind: adamw_8bit"):
        check_kinds(["paged_adamw_8bit"], "cpu")
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    quantized._library.cache_clear()
    check_kinds(["adamw"], "cpu")
    with pytest.raises(ConfigError, match=r"optimizer.kind=adamw_8bit needs bitsandbytes.*verizero\[quantized\]"):
        check_kinds(["adamw_8bit"], "cpu")
    quantized._library.cache_clear()


def test_no_program_of_the_hub_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """On processors with bfloat16 the library takes a kernel from the hub where `kernels` is installed."""
    kernels: Any = object()
    monkeypatch.setitem(sys.modules, "kernels", kernels)
    quantized._library.cache_clear()
    quantized.library("x")
    assert sys.modules["kernels"] is kernels
