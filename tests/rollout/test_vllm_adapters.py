"""Adapters by themselves in vLLM, on the real engine: its tokens are those of the trainer's base and last adapters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.families import build
from tests.models.gguf_files import tiny_llama, write_gguf
from tests.rollout.real_vllm import needs_vllm
from tests.rollout.test_vllm_engine import EOS, REQUESTS, SMALL, check_responses
from verizero.pipeline.errors import ConfigError, EngineError
from verizero.pipeline.models.gguf_file import model_folder
from verizero.pipeline.models.load import load_model
from verizero.pipeline.models.lora import Adapted
from verizero.pipeline.models.quantized import InBits, bits_of, dense
from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.rollout.engine_model import EngineModel
from verizero.pipeline.rollout.vllm_adapters import adapter_arguments
from verizero.pipeline.rollout.vllm_engine import VllmEngine
from verizero.pipeline.train.torch_backend import TorchBackend

pytestmark = [pytest.mark.integration, needs_vllm]


class Pair:
    """A policy with adapters, and vLLM."""

    def __init__(self, way: str, folder: Path) -> None:
        """`way`: how the base is kept."""
        file = None
        if way == "blocks":
            file = write_gguf(folder / "tiny.gguf", tiny_llama(head_width=32), quantized=True)
            model = load_model(model_folder(str(file), folder))
        else:
            model = build("qwen2", {"hidden_size": 128, "tie_word_embeddings": True})
        linear = [m for name, m in model.named_modules() if type(m) is torch.nn.Linear and name != "lm_head"]
        self.num_whole = 4 * sum(m.weight.numel() for m in linear)
        self.adapted = Adapted(model, 4, 8.0, (), 5, quantize_on=None if way == "whole" else "cpu", file=file)
        found = TorchBackend(model, adapted=self.adapted).engine_adapters(True)
        self.engine = VllmEngine(EngineModel.of(model, EOS, adapters=found, longest=64), SMALL, 64)


@torch.no_grad()
def moved(model: Any, seed: int) -> None:
    """Draw other adapters."""
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        if p.requires_grad:
            p.copy_(torch.randn(p.shape, generator=generator) * 0.3)


BITS = {"whole": 0, "four bits": 4.5, "blocks": 8.5}
"""Way -> bits that vLLM keeps of a weight of a linear layer; 0: numbers."""


@pytest.fixture(scope="module", params=BITS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def pair(way: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = Pair(way, tmp_path_factory.mktemp("base"))
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


def test_it_keeps_the_base_in_the_bits_of_the_trainer(pair: Pair, way: str) -> None:
    model = pair.engine._llm.llm_engine.model_executor.driver_worker.model_runner.get_model()
    in_bits = [p for p in model.parameters() if p.dtype == torch.uint8]
    assert sum(p.nbytes for p in in_bits) == pair.num_whole * BITS[way] / 32


def test_the_adapters_alone_are_published(pair: Pair) -> None:
    pair.engine.publish(3)
    wanted = sum(p.nbytes for p in pair.adapted.model.parameters() if p.requires_grad)
    assert pair.engine.counts() == {"publish/bytes": wanted}
    assert pair.engine.published is not None
    assert pair.engine.published.way == "adapters"


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
    assert TorchBackend(head.model, adapted=head).engine_adapters(True) is None, "merged weights are published"
    with pytest.raises(ConfigError, match=r"train.lora.rank=600, and vLLM computes adapters of at most 512"):
        adapter_arguments(adapted(rank=600).config)


def test_layers_that_vllm_computes_as_one_may_be_kept_in_different_ways() -> None:
    from verizero.pipeline.rollout.vllm_quantized import PLAIN, BitsMethod

    model = build("qwen2", {"hidden_size": 128})
    of_model = InBits(model, "cpu").read(model).model.layers[0].self_attn
    weights = [of_model.get_submodule(name).weight for name in ("q_proj", "k_proj", "v_proj")]
    numbers = [dense(weight) for weight in weights]
    layer: Any = torch.nn.Module()
    method = BitsMethod(["nf4", PLAIN, "nf4"])
    method.create_weights(layer, 128, [len(part) for part in numbers], 128, 0, torch.float32)
    for loaded, shard in ((bits_of(weights[2]), "v"), (numbers[1], "k"), (bits_of(weights[0]), "q")):
        layer.weight.weight_loader(layer.weight, loaded, shard)
    x, bias = torch.randn(3, 128), torch.randn(sum(map(len, numbers)))
    assert torch.equal(method.apply(layer, x, bias), torch.cat([x @ part.T for part in numbers], -1) + bias)
