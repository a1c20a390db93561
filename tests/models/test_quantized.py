"""Linear layers in 4 bits: numbers, bits, adapters on them, in the trainer and in the engine; read layer by layer."""

import gc
from typing import Any

import pytest
import torch

from tests.models.families import FAST, build, tiny
from tests.models.gguf_files import tiny_llama
from tests.models.test_lora import NEAR, logits, taught
from tests.stages.tiny import tiny as tiny_recipe
from tests.train.live_rank import Live
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models.decoder.decoder import ON_CPU, ON_GPU, Decoder
from verizero.pipeline.models.load import load_model
from verizero.pipeline.models.lora import Adapted, is_factor
from verizero.pipeline.models.quantized import (
    NF4_BITS,
    InBits,
    dense,
    is_quantized,
    num_weights,
)
from verizero.pipeline.models.saved_names import fingerprint
from verizero.pipeline.rollout.engine import Request, Sampling
from verizero.pipeline.rollout.hf_decoder import HfDecoder
from verizero.pipeline.rollout.torch_engine import TorchEngine
from verizero.pipeline.run.build import build_backend
from verizero.pipeline.run.opening import read_policy
from verizero.pipeline.seeds import derive
from verizero.pipeline.train.backend import Backend

IDS = torch.randint(2, 20, (3, 8), generator=torch.Generator().manual_seed(1))


def adapted(name: str, quantize_on: str | None, targets: tuple[str, ...] = ()) -> Adapted:
    return Adapted(tiny(name), 3, 6.0, targets, 5, quantize_on=quantize_on)


def test_a_layer_computes_with_the_numbers_that_its_bits_stand_for():
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


@pytest.mark.parametrize(
    ("model_type", "changes", "words"),
    [
        ("gpt2", {"n_embd": 32, "n_head": 4}, "has no linear layers; drop it"),
        ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}, "has experts"),
    ],
)
def test_what_has_no_linear_layers_alone_is_refused(model_type, changes, words):
    with pytest.raises(ConfigError, match=f"model.quantize: model type '{model_type}' {words}"):
        InBits(build(model_type, changes), "cpu")


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
def test_an_engine_computes_with_the_base_of_the_trainer_and_its_last_adapters(name, targets, quantize_on):
    a = adapted(name, quantize_on, targets)
    decoders = Decoder(a.model, ON_CPU), Decoder(a.model, ON_GPU), HfDecoder(a.model)
    fresh = last_logits(a.model)
    taught(a)
    moved = last_logits(a.model)
    assert (moved - fresh).abs().max() > 0.1
    for decoder in decoders:
        assert torch.allclose(stepped(decoder), fresh, rtol=0, atol=NEAR), "nothing is seen before it is published"
        decoder.refresh()
        assert torch.allclose(stepped(decoder), moved, rtol=0, atol=NEAR)
    assert torch.allclose(last_logits(a.plain_model()), moved, rtol=0, atol=NEAR)
    assert torch.equal(last_logits(a.snapshot()), moved)
    base = {p.data_ptr() for p in a.model.parameters() if not p.requires_grad}
    assert {p.data_ptr() for p in decoders[2].model.parameters()} >= base
    held = {t.data_ptr() for t in (decoders[1].embedding, decoders[1].norm, decoders[1].head)}
    assert held <= base


def computes_what_the_trainer_does(engine: TorchEngine, backend: Backend) -> None:
    (answers,) = engine.generate([Request((3, 4, 5), tuple(range(40)))], Sampling(12))
    for answer in answers:
        ids = torch.tensor([[3, 4, 5, *answer.token_ids]])
        where = torch.arange(ids.shape[1])[None] >= 3
        with torch.no_grad():
            found = backend.logprobs(ids, where, 1.0)[0][0, 3:]
        assert torch.allclose(torch.tensor(answer.logprobs), found, rtol=0, atol=NEAR)


def test_each_token_has_the_logprob_that_the_trainer_computes():
    a = adapted("qwen2 tied", "cpu")
    backend = Backend(a.model, adapted=a)
    engine = TorchEngine(backend.engine_module(), [1], 0)
    assert engine.is_fast
    taught(a)
    engine.publish(1)
    computes_what_the_trainer_does(engine, backend)
    assert engine.counts() == {"publish/bytes": sum(p.nbytes for p in a.model.parameters() if p.requires_grad)}


def test_a_saved_folder_has_the_numbers_that_computed_and_no_bits(tmp_path):
    import transformers

    a = taught(adapted("llama", "cpu"))
    Backend(a.model, adapted=a).whole_model(only_first=True).save_pretrained(tmp_path / "model")
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert torch.allclose(logits(plain), logits(a.model), rtol=0, atol=NEAR)


@pytest.mark.parametrize(("quantize_on", "trims"), [(None, 0), ("cpu", 1)])
def test_an_engine_on_a_base_in_bits_gives_memory_back_before_an_update(quantize_on, trims, monkeypatch):
    policy, done = adapted("llama", quantize_on), []
    engine = TorchEngine(policy.model, [1], 0)
    monkeypatch.setattr("verizero.pipeline.rollout.torch_engine.trim_heap", lambda: done.append(True))
    engine.publish(0)
    engine.generate([Request((2, 3), (0,))], Sampling(2))
    assert not done
    engine.rest()
    assert len(done) == trims


LAYERS = 12
SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 200,
}


def opened(path: str, dtype: str, **model: Any) -> Backend:
    """The backend of one process around the recipe's model, which is read as a run reads it."""
    changes = {"model": {"create": None, "path": path, "dtype": dtype, **model}, "train": {"lora": {"rank": 2}}}
    config = tiny_recipe(changes)
    return build_backend(config, read_policy(config, path, "cpu"))


def held_by(model: Any) -> int:
    """Bytes of all tensors of a model, scales included."""
    states = [p.quant_state for p in model.parameters() if hasattr(p, "quant_state")]
    tensors = [*model.parameters(), *model.buffers(), *(x for s in states for x in (s.absmax, s.state2.absmax, s.code))]
    return sum(t.nbytes for t in {id(t): t for t in tensors}.values())


@pytest.mark.run
@pytest.mark.parametrize(("dtype", "tied"), [("float32", False), ("bfloat16", True)])
def test_no_more_than_bits_and_a_few_layers_is_in_memory(tmp_path, dtype, tied):
    pytest.importorskip("bitsandbytes")
    build("llama", {**SHAPE, "tie_word_embeddings": tied}).save_pretrained(tmp_path)
    gc.collect()
    with Live() as live:
        backend = opened(str(tmp_path), dtype, quantize="nf4")
        peak = live.peak
    model = backend.model
    largest, table = 4 * 128 * 256, 4 * 128 * 200  # both in float32, as they are in the file
    base = 4 * sum(p.numel() for p in load_model(str(tmp_path)).parameters())
    assert sum(map(is_quantized, model.parameters())) == 7 * LAYERS
    assert held_by(model) < 0.3 * base
    assert peak < held_by(model) + 4 * max(largest, table)
    assert peak < 0.5 * base
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_are_those_of_a_base_that_was_read_whole(tmp_path, dtype):
    pytest.importorskip("bitsandbytes")
    tiny_llama(head_width=16).save_pretrained(tmp_path)
    backend = opened(str(tmp_path), dtype, quantize="nf4")
    whole = load_model(str(tmp_path), dtype)
    wanted_base = fingerprint(whole)
    wanted = Adapted(whole, 2, 16.0, (), derive(tiny_recipe().seed, "lora"), quantize_on="cpu")
    assert wanted.base == wanted_base
    assert backend.adapted.base == wanted_base, "adapters of a checkpoint are those of this base"
    theirs = dict(wanted.model.named_parameters())
    ours = dict(backend.model.named_parameters())
    assert ours.keys() == theirs.keys()
    for name, p in ours.items():
        other = theirs[name]
        assert (p.dtype, p.requires_grad) == (other.dtype, other.requires_grad) == (other.dtype, is_factor(name)), name
        assert torch.equal(p, other), name
        if hasattr(p, "quant_state"):
            assert torch.equal(p.quant_state.absmax, other.quant_state.absmax), name
            assert torch.equal(p.quant_state.state2.absmax, other.quant_state.state2.absmax), name
            assert torch.equal(p.quant_state.offset, other.quant_state.offset), name
    assert all(torch.equal(b, c) for b, c in zip(backend.model.buffers(), wanted.model.buffers(), strict=True))
