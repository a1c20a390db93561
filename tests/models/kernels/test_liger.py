"""Liger's modules, interpreted on the CPU: they compute what transformers' do, and the process stays as it was."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.qwen2 import modeling_qwen2

from tests.models.families import tiny
from tests.models.kernels.interpreted import interpreted
from tests.models.test_runs import batch, ours, worst
from tests.stages.tiny import tiny as tiny_recipe
from verizero.pipeline.config.sections import TrainConfig
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models import liger
from verizero.pipeline.models.load import recompute_activations
from verizero.pipeline.models.saved_names import without_memory
from verizero.pipeline.report.progress import Silent
from verizero.pipeline.run.opening import open_run
from verizero.pipeline.train.backend import compiling_of

NAMES = ("qwen2 tied", "qwen3 with bias", "mistral with a sliding window")
ROWS = ((3, (2, 1)), (2, (2,)))
needs_liger = pytest.mark.skipif(importlib.util.find_spec("liger_kernel") is None, reason="liger-kernel is optional")


def interpretable() -> list[str]:
    """Let Triton's interpreter take Liger's kernels, and return a list that gets the name of each that is launched.

    It gives a kernel Python's numbers where a compiler gives float32, and knows no function of a GPU's library.
    """
    import numpy as np
    import triton.language as tl
    from liger_kernel.ops import rms_norm
    from triton.runtime import interpreter

    convert, launch, launched = interpreter._implicit_cvt, interpreter.GridExecutor.__call__, list[str]()

    def converted(x: Any) -> Any:
        if isinstance(x, float):
            return tl.tensor(interpreter.TensorHandle(np.array([x], dtype=np.float32), tl.float32), tl.float32)
        return convert(x)

    def counted(self: Any, *arguments: Any, **named: Any) -> Any:
        launched.append(self.fn.__name__)
        return launch(self, *arguments, **named)

    interpreter._implicit_cvt, interpreter.GridExecutor.__call__ = converted, counted
    rms_norm.rsqrt = lambda x: 1 / tl.sqrt(x)
    return launched


def compared(name: str, launched: list[str]) -> dict[str, Any]:
    """The gaps of packed rows' log-probs and gradients, and the kernels that were launched."""
    launched.clear()
    data = batch(ROWS)
    values, gradients = ours(tiny(name), data)
    model = tiny(name)
    liger.enable(model)
    twin = copy.deepcopy(model)
    recompute_activations(twin)
    gaps = []
    for other in (model, twin):
        found, own = ours(other, data)
        gaps.append((float((found - values).abs().max()), worst(own, gradients)))
    kernels = sorted(set(launched))
    launched.clear()
    liger.restore()
    again, _ = ours(tiny(name), data)
    return {"gaps": gaps, "kernels": kernels, "after": list(launched), "same after": torch.equal(again, values)}


def all_compared() -> dict[str, dict[str, Any]]:
    torch.set_num_threads(1)
    launched = interpretable()
    return {name: compared(name, launched) for name in NAMES}


@needs_liger
@pytest.mark.integration
@pytest.mark.slow
def test_log_probs_and_gradients_are_those_of_transformers() -> None:
    """A model, and a copy that computes its activations again; later models of the same type are transformers' own."""
    for name, found in interpreted(all_compared).items():
        for value, gradient in found["gaps"]:
            assert value <= 1e-5, name
            assert gradient <= 1e-4, name
        assert any("rms_norm" in kernel for kernel in found["kernels"]), name
        assert any("swiglu" in kernel for kernel in found["kernels"]), name
        assert any("rope" in kernel for kernel in found["kernels"]), name
        assert found["after"] == [], name
        assert found["same after"], name


@needs_liger
def test_a_type_that_liger_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"train\.kernels=liger: model type 'gpt2' is none that Liger knows"):
        liger.enable(tiny("gpt2"))


@needs_liger
def test_classes_and_the_loss_stay_transformers_own() -> None:
    norm, rotate = modeling_qwen2.Qwen2RMSNorm, modeling_qwen2.apply_rotary_pos_emb
    model = tiny("qwen2 tied")
    try:
        liger.enable(without_memory(model))
        assert modeling_qwen2.Qwen2RMSNorm is norm
        assert modeling_qwen2.apply_rotary_pos_emb is not rotate
        assert "forward" not in vars(model)
    finally:
        liger.restore()
    assert modeling_qwen2.apply_rotary_pos_emb is rotate


def test_where_it_cannot_run_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ConfigError, match=r"train\.kernels=liger runs on CUDA, and the device is 'cpu'"):
        liger.check("cpu")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install liger-kernel"):
        liger.check("cuda:1")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    liger.check("cuda:1")


def test_blocks_are_not_compiled_too() -> None:
    cuda = torch.device("cuda")
    assert compiling_of(TrainConfig(), cuda) is not None
    assert compiling_of(TrainConfig(kernels="liger"), cuda) is None
    with pytest.raises(ValueError, match=r"train\.compile=on with train\.kernels=liger"):
        TrainConfig(kernels="liger", compile="on")


@pytest.mark.integration
def test_a_run_takes_them_for_its_policy_alone_and_gives_them_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_recipe({"train": {"kernels": "liger"}})
    with (
        pytest.raises(ConfigError, match="the device is 'cpu'"),
        open_run(config, tmp_path, tmp_path / "a", "auto", Silent()),
    ):
        pass
    calls: list[Any] = []
    monkeypatch.setattr(liger, "check", lambda device: calls.append(device))
    monkeypatch.setattr(liger, "enable", calls.append)
    monkeypatch.setattr(liger, "restore", lambda: calls.append("restored"))
    with open_run(config, tmp_path, tmp_path / "b", "auto", Silent()) as session:
        assert calls == ["cpu", session.workers.backend.model]
    assert calls[2:] == ["restored"]
