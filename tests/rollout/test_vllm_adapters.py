"""Adapters by themselves in vLLM, on the real engine: its tokens are those of the trainer's base and last adapters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.models.families import build
from tests.rollout.real_vllm import needs_vllm
from tests.rollout.test_vllm_engine import EOS, REQUESTS, SMALL, check_responses
from verizero.pipeline.errors import ConfigError, EngineError
from verizero.pipeline.models.lora import Adapted
from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.rollout.engine_model import EngineModel
from verizero.pipeline.rollout.vllm_arguments import adapter_arguments
from verizero.pipeline.rollout.vllm_engine import VllmEngine
from verizero.pipeline.train.backend import Backend

pytestmark = [pytest.mark.run, pytest.mark.nightly, needs_vllm]


class Pair:
    """A policy with adapters, and vLLM."""

    def __init__(self, quantize_on: str | None) -> None:
        model = build("qwen2", {"hidden_size": 128, "tie_word_embeddings": True})
        self.adapted = Adapted(model, 4, 8.0, (), 5, quantize_on=quantize_on)
        found = Backend(model, adapted=self.adapted).engine_adapters()
        self.engine = VllmEngine(EngineModel.of(model, EOS, adapters=found, longest=64), SMALL, 64)


@torch.no_grad()
def moved(model: Any, seed: int) -> None:
    """Draw other adapters."""
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        if p.requires_grad:
            p.copy_(torch.randn(p.shape, generator=generator) * 0.3)


@pytest.fixture(scope="module", params=[None, "cpu"], ids=["numbers", "four bits"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    pair = Pair(request.param)
    yield pair
    pair.engine.close()


def test_after_each_publish_it_is_the_trainer_and_not_before(pair: Pair) -> None:
    pair.engine.publish(0)
    check_responses(pair.engine, pair.adapted.model)
    before = pair.engine.generate(REQUESTS, Sampling(20, temperature=0))
    for version in (1, 2):
        moved(pair.adapted.model, version)
        assert pair.engine.generate(REQUESTS, Sampling(20, temperature=0)) == before
        pair.engine.publish(version)
        assert pair.engine.version == version
        check_responses(pair.engine, pair.adapted.model)
        before = pair.engine.generate(REQUESTS, Sampling(20, temperature=0))


def test_the_adapters_alone_are_published(pair: Pair) -> None:
    pair.engine.publish(3)
    wanted = sum(p.nbytes for p in pair.adapted.model.parameters() if p.requires_grad)
    assert pair.engine.counts() == {"publish/bytes": wanted}


def test_adapters_that_it_does_not_report_are_refused(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = pair.engine._llm.collective_rpc

    def kept_others(method: str, args: Any) -> Any:
        said = plain(method, args=args)
        return [[1, 2]] if method == "put_adapters" else said

    monkeypatch.setattr(pair.engine._llm, "collective_rpc", kept_others)
    with pytest.raises(EngineError, match=r"vLLM has the adapters \[\[1, 2\]\] .* after number 1 was published"):
        pair.engine.publish(9)


def test_layers_and_ranks_that_it_does_not_compute_are_not_its() -> None:
    def adapted(**how: Any) -> Adapted:
        return Adapted(
            build("qwen2", {"tie_word_embeddings": False}), how.get("rank", 2), 4.0, how.get("targets", ()), 0
        )

    head = adapted(targets=("lm_head",))
    assert Backend(head.model, adapted=head).engine_adapters() is None, "merged weights are published"
    with pytest.raises(ConfigError, match=r"train.lora.rank=600, and vLLM computes adapters of at most 512"):
        adapter_arguments(adapted(rank=600).config)
