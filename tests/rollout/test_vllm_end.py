"""What vLLM in this process leaves behind: while it sleeps, and after its end; on the real engine."""

from __future__ import annotations

import gc
import os
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.rollout.real_vllm import needs_vllm
from tests.rollout.test_vllm_engine import Colocated, check_greedy
from verizero.pipeline.models.compiled import COMPILE_THREADS

pytestmark = [pytest.mark.run, pytest.mark.nightly, needs_vllm]


@pytest.mark.parametrize("of_trainer", [True, False])
def test_its_memory_is_free_and_the_trainers_group_stays(of_trainer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time a second engine starts where the first one was."""
    import torch._inductor.config as inductor

    monkeypatch.delenv(COMPILE_THREADS, raising=False)
    if of_trainer:
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        with inductor.patch(compile_threads=7):
            both = Colocated()
            assert COMPILE_THREADS not in os.environ
            assert inductor.compile_threads == 7
        both.publish()
        check_greedy(both)
        engine: Any = both.engine._llm.llm_engine
        finalizer, model = engine.engine_core._finalizer, weakref.ref(engine._get_driver_model_for_cleanup())
        assert model() is not None
        del engine
        both.engine.close()
        gc.collect()
        assert not finalizer.alive, "vLLM would end the trainer's group at some later time"
        assert model() is None
        assert dist.is_initialized() is of_trainer
        if of_trainer:
            dist.all_reduce(torch.ones(1))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
