"""Linear layers in the blocks of a GGUF file: the file's numbers, and what trains and generates on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.models.gguf_files import tiny_llama, write_gguf
from tests.models.test_lora import logits, taught
from tests.models.test_quantized import computes_what_the_trainer_does
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models.flops import update_flops
from verizero.pipeline.models.gguf_blocks import LAYOUTS, BlockLinear, blocks_of, mean_bits, num_bytes, numbers
from verizero.pipeline.models.gguf_file import model_folder
from verizero.pipeline.models.load import load_model
from verizero.pipeline.models.lora import Adapted
from verizero.pipeline.models.quantized import InBits, dense, is_quantized, num_weights, sharing
from verizero.pipeline.rollout.torch_engine import TorchEngine
from verizero.pipeline.train.torch_backend import TorchBackend

gguf = pytest.importorskip("gguf")
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2]}
"""Type -> the bytes of a block at which its float16 numbers begin; in Q6_K at its end."""


@pytest.mark.parametrize("kind", LAYOUTS)
def test_blocks_of_any_bytes_are_the_numbers_of_the_package(kind: str) -> None:
    own = gguf.GGMLQuantizationType[kind]
    per_block, size = gguf.GGML_QUANT_SIZES[own]
    draw = np.random.default_rng(0)
    blocks = draw.integers(0, 256, (195, size), dtype=np.uint8)
    for at in HALVES.get(kind, [size - 2]):
        blocks[:, at : at + 2] = draw.normal(0, 0.01, 195).astype(np.float16).view(np.uint8).reshape(195, 2)
    rows = torch.from_numpy(blocks).view(65, -1)
    layer = BlockLinear(torch.nn.Linear(3 * per_block, 65, bias=False), rows, kind, size)
    assert layer.weight.nbytes == blocks.nbytes == num_bytes(kind, torch.Size([65, 3 * per_block]))
    wanted = torch.from_numpy(gguf.dequantize(blocks, own)).view(65, -1)
    assert torch.equal(numbers(layer.weight), wanted)
    x = torch.randn(4, 3 * per_block)
    torch.testing.assert_close(layer(x), x @ wanted.T)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_of_a_weight_elsewhere_no_tensor_is_made_on_the_cpu(kind: str) -> None:
    per_block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    rows = torch.zeros(2, size, dtype=torch.uint8)
    weight = BlockLinear(torch.nn.Linear(per_block, 2, bias=False, dtype=torch.bfloat16), rows, kind, size).weight
    there = torch.nn.Parameter(weight.to("meta"), requires_grad=False)
    there.blocks = blocks_of(weight)  # type: ignore[attr-defined]
    made = numbers(there)  # an operation on tensors of two devices is an error
    assert (made.device.type, made.shape, made.dtype) == ("meta", (2, per_block), torch.bfloat16)


def of_file(tmp_path: Path, dtype: str = "float32") -> tuple[Path, Any]:
    """A file in Q8_0 and the model that is read from it."""
    file = write_gguf(tmp_path / "tiny.gguf", tiny_llama(), quantized=True)
    return file, load_model(model_folder(str(file), tmp_path), dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_in_blocks_computes_what_it_did(tmp_path: Path, dtype: str) -> None:
    file, plain = of_file(tmp_path, dtype)
    before = {name: p.detach().clone() for name, p in plain.named_parameters()}
    wanted, operations = logits(plain), update_flops(plain.requires_grad_(False), [(9, 4)])
    model = InBits(plain, "cpu", file).read(plain)
    assert update_flops(model, [(9, 4)]) == operations
    weights = dict(model.named_parameters())
    assert sum(map(is_quantized, weights.values())) == 2 * 7
    for name, weight in weights.items():
        assert torch.equal(dense(weight), before[name]), name
        assert num_weights(weight) == before[name].numel()
    assert mean_bits(file) == 8.5 == 8 * weights["model.layers.0.mlp.up_proj.weight"].nbytes / (64 * 32)
    # The same numbers in another order in memory: products add them up in another order, too.
    torch.testing.assert_close(logits(model), wanted)


def test_adapters_learn_as_on_the_numbers_and_the_engine_computes_with_the_trainers(tmp_path: Path) -> None:
    file, plain = of_file(tmp_path)
    ours = taught(Adapted(load_model(model_folder(str(file), tmp_path)), 3, 6.0, (), 5, quantize_on="cpu", file=file))
    theirs = taught(Adapted(plain, 3, 6.0, (), 5))
    ids = torch.tensor([[3, 4, 5, 6, 7, 8]])
    for a in (ours, theirs):
        a.model(input_ids=ids).logits.logsumexp(-1).sum().backward()
    pairs = list(zip(ours.model.named_parameters(), theirs.model.named_parameters(), strict=True))
    learned = [(p.grad, q.grad) for (_, p), (_, q) in pairs if q.requires_grad]
    assert len(learned) == 2 * 14
    for mine, wanted in learned:
        assert wanted is not None
        assert bool(wanted.any())
        torch.testing.assert_close(mine, wanted)
    ours.model.zero_grad()
    backend = TorchBackend(ours.model, adapted=ours)
    engine = TorchEngine(backend.engine_module(), [1], 0)
    assert engine.is_fast
    engine.publish(0)
    computes_what_the_trainer_does(engine, backend)
    assert torch.allclose(logits(ours.plain_model()), logits(theirs.plain_model()), rtol=0, atol=1e-5)
    base = [p for p in ours.model.parameters() if not p.requires_grad]
    assert sharing(base).keys() == {id(p) for p in base}
    assert {id(p) for p in ours.snapshot().parameters()} >= {id(p) for p in base}


def test_blocks_that_are_not_the_models_numbers_are_refused(tmp_path: Path) -> None:
    file, plain = of_file(tmp_path)
    with torch.no_grad():
        plain.model.layers[1].mlp.up_proj.weight[3, 4] += 1
    with pytest.raises(ConfigError, match=r"blocks of model\.layers\.1\.mlp\.up_proj in tiny\.gguf are not what"):
        InBits(plain, "cpu", file).read(plain)
    whole = write_gguf(tmp_path / "whole.gguf", tiny_llama())
    with pytest.raises(ConfigError, match=r"whole\.gguf has no linear layer in blocks"):
        InBits(load_model(model_folder(str(whole), tmp_path)), "cpu", whole)
