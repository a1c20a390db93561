"""A base in bits is read from its files layer by layer: the same bits, and never the whole of its numbers in memory."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.families import build
from tests.models.gguf_files import tiny_llama, write_gguf
from tests.stages.tiny import tiny
from tests.train.live_rank import Live
from verizero.pipeline.models.fingerprint import fingerprint
from verizero.pipeline.models.gguf_file import model_folder
from verizero.pipeline.models.load import load_model
from verizero.pipeline.models.lora import Adapted, is_factor
from verizero.pipeline.models.quantized import is_quantized
from verizero.pipeline.run.build import build_backend
from verizero.pipeline.run.stage_entry import read_policy
from verizero.pipeline.seeds import derive
from verizero.pipeline.train.backend import Backend

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
    config = tiny(changes)
    folder = path if model["quantize"] == "nf4" else model_folder(path, Path(path).parent)
    return build_backend(config, read_policy(config, folder, "cpu"))


def held_by(model: Any) -> int:
    """Bytes of all tensors of a model, scales included."""
    states = [p.quant_state for p in model.parameters() if hasattr(p, "quant_state")]
    tensors = [*model.parameters(), *model.buffers(), *(x for s in states for x in (s.absmax, s.state2.absmax, s.code))]
    return sum(t.nbytes for t in {id(t): t for t in tensors}.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [False, True])
def test_no_more_than_bits_and_a_few_layers_is_in_memory(tmp_path: Path, dtype: str, tied: bool) -> None:
    pytest.importorskip("bitsandbytes")
    build("llama", {**SHAPE, "tie_word_embeddings": tied}).save_pretrained(tmp_path)
    gc.collect()
    with Live() as live:
        backend = opened(str(tmp_path), dtype, quantize="nf4")
        peak = live.peak
    model: Any = backend.model
    largest, table = 4 * 128 * 256, 4 * 128 * 200  # both in float32, as they are in the file
    base = 4 * sum(p.numel() for p in load_model(str(tmp_path)).parameters())
    assert sum(map(is_quantized, model.parameters())) == 7 * LAYERS
    assert held_by(model) < 0.3 * base
    assert peak < held_by(model) + 4 * max(largest, table)
    assert peak < 0.5 * base
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["nf4", "gguf"])
def test_bits_are_those_of_a_base_that_was_read_whole(tmp_path: Path, kind: str, dtype: str) -> None:
    pytest.importorskip({"nf4": "bitsandbytes", "gguf": "gguf"}[kind])
    file = None
    if kind == "gguf":
        file = write_gguf(tmp_path / "tiny.gguf", tiny_llama(), quantized=True)
        folder = model_folder(str(file), tmp_path)
    else:
        folder = str(tmp_path)
        tiny_llama(head_width=16).save_pretrained(folder)
    backend = opened(folder if file is None else str(file), dtype, quantize=kind)
    whole = load_model(folder, dtype)
    wanted_base = fingerprint(whole)
    wanted = Adapted(whole, 2, 16.0, (), derive(tiny().seed, "lora"), quantize_on="cpu", file=file)
    assert wanted.base == wanted_base
    assert backend.adapted is not None
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
        assert getattr(p, "blocks", None) == getattr(other, "blocks", None), name
    assert all(torch.equal(b, c) for b, c in zip(backend.model.buffers(), wanted.model.buffers(), strict=True))
