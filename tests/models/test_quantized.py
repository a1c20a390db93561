"""Linear layers in 4 bits: their numbers, their bits, and adapters on them, in the trainer and in the engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.models.families import FAST, build, tiny
from tests.models.test_lora import logits, taught
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models.cpu.decoder import ON_CPU, ON_GPU, Decoder
from verizero.pipeline.models.lora import Adapted
from verizero.pipeline.models.quantized import (
    NF4_BITS,
    InBits,
    bits_of,
    dense,
    from_bits,
    is_quantized,
    library,
    num_bytes,
    num_weights,
)
from verizero.pipeline.rollout.engine import Request, Sampling
from verizero.pipeline.rollout.hf_decoder import HfDecoder
from verizero.pipeline.rollout.torch_engine import TorchEngine
from verizero.pipeline.train.torch_backend import TorchBackend

IDS = torch.randint(2, 20, (3, 8), generator=torch.Generator().manual_seed(1))


def adapted(name: str, quantize_on: str | None, targets: tuple[str, ...] = ()) -> Adapted:
    return Adapted(tiny(name), 3, 6.0, targets, 5, quantize_on=quantize_on)


def test_a_layer_computes_with_the_numbers_that_its_bits_stand_for() -> None:
    model = build("qwen2", {"hidden_size": 256, "intermediate_size": 512, "tie_word_embeddings": False})
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    InBits(model, "cpu").read(model)
    names = [name for name, p in model.named_parameters() if is_quantized(p)]
    assert len(names) == 2 * 7, "all linear layers of two blocks"
    assert not is_quantized(model.lm_head.weight)
    for name in names:
        layer = model.get_submodule(name.removesuffix(".weight"))
        weight, was = layer.weight, before[name]
        numbers = dense(weight)
        assert (numbers.shape, numbers.dtype, num_weights(weight)) == (was.shape, was.dtype, was.numel())
        assert 0.02 < float((numbers - was).norm() / was.norm()) < 0.15
        x = torch.randn(5, was.shape[1])
        wanted = torch.nn.functional.linear(x, numbers, layer.bias)
        with torch.no_grad():
            assert torch.equal(layer(x), wanted)  # on processors with bfloat16 another product would be taken here
        assert torch.equal(layer(x.requires_grad_()), wanted)
        state = weight.quant_state
        held = weight.nbytes + state.absmax.nbytes + state.state2.absmax.nbytes
        assert 8 * held / was.numel() == pytest.approx(NF4_BITS, rel=1e-3)


@pytest.mark.parametrize("shape", [(6, 128), (5, 33)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_its_bits_alone_make_the_numbers_in_any_type(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Its own scales are in eight bits, those of the bits in float32."""
    model = build("qwen2", {"tie_word_embeddings": False})
    model.model.layers[0].mlp.up_proj = torch.nn.Linear(shape[1], shape[0], dtype=dtype)
    in_bits = InBits(model, "cpu")
    assert in_bits.kinds["model.layers.0.mlp.up_proj.weight"] == "nf4"
    weight = in_bits.read(model).model.layers[0].mlp.up_proj.weight
    bits = bits_of(weight)
    assert (bits.dtype, len(bits)) == (torch.uint8, num_bytes("nf4", weight.quant_state.shape))
    assert torch.equal(from_bits(bits, "nf4", torch.Size(shape), dtype), dense(weight))
    wide = from_bits(bits, "nf4", torch.Size(shape), torch.float32)
    assert torch.equal(wide.to(dtype), dense(weight))


@pytest.mark.parametrize("kind", ["nf4", "Q5_K", "Q6_K"])
def test_vllm_can_compile_a_product_with_bits(kind: str) -> None:
    """On a GPU it compiles the whole model as one graph."""
    if kind == "nf4":
        library("model.quantize=nf4")
    shape = torch.Size([8, 256])
    bits = torch.randint(0, 60, (num_bytes(kind, shape),), dtype=torch.uint8)

    def product(x: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, from_bits(bits, kind, shape, torch.float32))

    compiled, x = torch.compile(product, backend="aot_eager", fullgraph=True), torch.randn(3, 256)
    assert torch.equal(compiled(x, bits), product(x, bits))


def test_a_model_without_linear_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model.quantize: model type 'gpt2' has no linear layers; drop it"):
        InBits(tiny("gpt2"), "cpu")


def test_experts_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"model.quantize: model type 'qwen3_moe' has experts"):
        InBits(build("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}), "cpu")


def stepped(decoder: Any) -> torch.Tensor:
    """Logits after prompts of six tokens and two more, one by one."""
    cache = decoder.open([6] * 3, [1] * 3, 3, 2)
    decoder.admit(cache, IDS[:, :6].tolist(), [1] * 3, range(3))
    cache.resize(3)
    decoder.step(IDS[:, 6], cache)
    found: torch.Tensor = decoder.step(IDS[:, 7], cache)
    return found


@torch.no_grad()
def last_logits(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=IDS, use_cache=False).logits[:, -1]
    return found


SOME = ("v_proj", "up_proj", "down_proj")


@pytest.mark.parametrize("quantize_on", [None, "cpu"])
@pytest.mark.parametrize(
    ("name", "targets"), [*((name, ()) for name in FAST), ("llama", SOME), ("llama", ("lm_head",))]
)
def test_an_engine_computes_with_the_base_of_the_trainer_and_its_last_adapters(
    name: str, targets: tuple[str, ...], quantize_on: str | None
) -> None:
    a = adapted(name, quantize_on, targets)
    decoders = Decoder(a.model, ON_CPU), Decoder(a.model, ON_GPU), HfDecoder(a.model)
    fresh = last_logits(a.model)
    taught(a)
    moved = last_logits(a.model)
    assert (moved - fresh).abs().max() > 0.1
    for decoder in decoders:
        assert torch.allclose(stepped(decoder), fresh, rtol=0, atol=1e-5), "nothing is seen before it is published"
        decoder.refresh()
        assert torch.allclose(stepped(decoder), moved, rtol=0, atol=1e-5)
    assert torch.allclose(last_logits(a.plain_model()), moved, rtol=0, atol=1e-5)
    assert torch.equal(last_logits(a.snapshot()), moved)
    base = {p.data_ptr() for p in a.model.parameters() if not p.requires_grad}
    assert {p.data_ptr() for p in decoders[2].model.parameters()} >= base
    held = {t.data_ptr() for t in (decoders[1].embedding, decoders[1].norm, decoders[1].head)}
    assert held <= base


def computes_what_the_trainer_does(engine: TorchEngine, backend: TorchBackend) -> None:
    (answers,) = engine.generate([Request((3, 4, 5), tuple(range(40)))], Sampling(12))
    for answer in answers:
        ids = torch.tensor([[3, 4, 5, *answer.token_ids]])
        where = torch.arange(ids.shape[1])[None] >= 3
        with torch.no_grad():
            found = backend.logprobs(ids, where, 1.0)[0][0, 3:]
        assert torch.allclose(torch.tensor(answer.logprobs), found, rtol=0, atol=1e-5)


def test_each_token_has_the_logprob_that_the_trainer_computes() -> None:
    a = adapted("qwen2 tied", "cpu")
    backend = TorchBackend(a.model, adapted=a)
    engine = TorchEngine(backend.engine_module(), [1], 0)
    assert engine.is_fast
    taught(a)
    engine.publish(1)
    computes_what_the_trainer_does(engine, backend)
    assert engine.counts() == {"publish/bytes": sum(p.nbytes for p in a.model.parameters() if p.requires_grad)}


def test_a_saved_folder_has_the_numbers_that_computed_and_no_bits(tmp_path: Any) -> None:
    import transformers

    a = taught(adapted("llama", "cpu"))
    TorchBackend(a.model, adapted=a).whole_model(only_first=True).save_pretrained(tmp_path / "model")
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert torch.allclose(logits(plain), logits(a.model), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("quantize_on", "trims"), [(None, 0), ("cpu", 1)])
def test_an_engine_on_a_base_in_bits_gives_memory_back_before_an_update(
    quantize_on: str | None, trims: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, done = adapted("llama", quantize_on), []
    engine = TorchEngine(policy.model, [1], 0)
    monkeypatch.setattr("verizero.pipeline.rollout.torch_engine.trim_heap", lambda: done.append(True))
    engine.publish(0)
    engine.generate([Request((2, 3), (0,))], Sampling(2))
    assert not done
    engine.rest()
    assert len(done) == trims
