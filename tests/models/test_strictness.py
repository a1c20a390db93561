"""torch's switch for deterministic kernels, with a backward pass in one thread and an engine in another."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.models.families import tiny
from tests.rollout.stub_vllm import StubLlm, StubVllm
from verizero.pipeline.config.rollout import VllmConfig
from verizero.pipeline.models.strictness import lenient, strict
from verizero.pipeline.rollout import torch_engine
from verizero.pipeline.rollout.engine import Request, Sampling
from verizero.pipeline.rollout.engine_model import EngineModel
from verizero.pipeline.rollout.torch_engine import TorchEngine
from verizero.pipeline.rollout.vllm_engine import VllmEngine


@pytest.fixture
def deterministic() -> Iterator[None]:
    """torch is told to be deterministic, as in a run on a GPU."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
def test_another_thread_waits_for_the_backward_pass() -> None:
    entered = threading.Event()
    seen: list[bool] = []

    def generate() -> None:
        with lenient():
            seen.append(torch.is_deterministic_algorithms_warn_only_enabled())
            entered.set()

    thread = threading.Thread(target=generate)
    with strict():
        thread.start()
        assert not entered.wait(0.1)
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
    thread.join()
    assert seen == [True]
    with strict(), lenient():
        pass  # the same thread does not wait for itself


def test_nothing_waits_where_torch_is_not_deterministic() -> None:
    with lenient():
        thread = threading.Thread(target=lambda: lenient().__enter__())
        thread.start()
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("kind", ["torch", "vllm"])
def test_no_step_of_an_engine_is_strict(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def noting(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def noted(*arguments: Any) -> Any:
            seen.append(torch.is_deterministic_algorithms_warn_only_enabled())
            time.sleep(0.002)
            seen.append(torch.is_deterministic_algorithms_warn_only_enabled())
            return real(*arguments)

        monkeypatch.setattr(owner, name, noted)

    model = tiny("qwen2 tied")
    if kind == "torch":
        engine: Any = TorchEngine(model, (1,), 0, 4)
        noting(torch_engine._Decode, "_draw")
    else:
        engine = VllmEngine(EngineModel.of(model, (5,)), VllmConfig(), 4, 2, StubVllm())
        noting(StubLlm, "step")
    engine.publish(1)
    requests = [Request((3, 4), (seed,)) for seed in range(12)]
    num_backwards = 0

    def generate() -> None:
        while num_backwards < 3:
            engine.generate(requests, Sampling(20))

    thread = threading.Thread(target=generate)
    thread.start()
    while thread.is_alive():
        with strict():
            num_backwards += 1
        time.sleep(0.0005)
    engine.close()
    assert num_backwards >= 3
    assert seen
    assert all(seen)
