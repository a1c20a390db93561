"""Models without their weights: read in rows, written block by block, filled; and names of weights, layer by layer."""

import threading
from typing import Any

import pytest
import torch
import transformers

from tests.models.families import FAST, SLOW, build, next_logits, tiny
from tests.models.test_lora import FORMS
from verizero.pipeline.models import streamed
from verizero.pipeline.models.saved_names import filled, pieces, without_memory
from verizero.pipeline.models.streamed import Streamed, model_on_meta, weights_of

EXPERTS = {name: FORMS[name][1] for name in ("qwen3_moe", "mixtral", "deepseek_v3")}


def model_of(name: str) -> Any:
    return build(name, EXPERTS[name]) if name in EXPERTS else tiny(name)


@pytest.mark.parametrize("name", [*FAST, *SLOW, *EXPERTS])
def test_buffers_are_computed_and_rows_read(name, tmp_path):
    model_of(name).save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    empty = model_on_meta(str(tmp_path), torch.float32)
    assert all(p.device.type == "meta" for p in empty.parameters())
    wanted = dict(loaded.named_buffers())
    found = dict(empty.named_buffers())
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert torch.equal(found[key], value), key
    files = weights_of(empty)
    for key, value in loaded.named_parameters():
        half = value.shape[0] // 2
        for rows in (slice(0, half), slice(half, value.shape[0])):
            assert torch.equal(files.rows(key, rows), value[rows]), key
    assert empty.generation_config.eos_token_id == loaded.generation_config.eos_token_id


def test_files_that_are_not_safetensors_or_quantised_are_not_read_in_rows(tmp_path):
    model = tiny("llama")
    model.config.save_pretrained(tmp_path / "torch")
    torch.save(model.state_dict(), tmp_path / "torch" / "pytorch_model.bin")
    assert model_on_meta(str(tmp_path / "torch"), torch.float32) is None
    model.save_pretrained(tmp_path / "quantised")
    model.config.quantization_config = {"quant_method": "fp8"}
    model.config.save_pretrained(tmp_path / "quantised")
    assert model_on_meta(str(tmp_path / "quantised"), torch.float32) is None


@pytest.mark.parametrize(("most", "writers"), [(1, 1), (1 << 30, 1), (1, 3), (1 << 30, 3)])
def test_a_folder_written_block_by_block_loads_as_any_other(most, writers, tmp_path, monkeypatch):
    monkeypatch.setattr("verizero.pipeline.models.streamed.FILE_BYTES", most)
    model = tiny("qwen3 with bias", dtype=torch.bfloat16)
    names = [name for name, _ in model.named_parameters()]
    blocks = [{name: model.get_parameter(name).detach()} for name in names]
    may_write, plain = threading.Event(), streamed._write
    monkeypatch.setattr(streamed, "_write", lambda *how: may_write.wait(60) and plain(*how))
    if writers == 1:
        may_write.set()
    ranks = [Streamed(model, lambda: iter(blocks), rank, writers) for rank in range(writers)]
    for rank in ranks:
        rank.save_pretrained(tmp_path / "model")
    if writers > 1:
        assert not list((tmp_path / "model").glob(".*")), "nothing waits for what several ranks write"
        may_write.set()
        written = [len(rank.finish()) for rank in ranks]
        assert (sum(written), max(written) - min(written) <= 1) == ((len(names), True) if most == 1 else (1, True))
    files = sorted(p.name for p in (tmp_path / "model").glob("*.safetensors"))
    assert len(files) == (len(names) if most == 1 else 1)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert again.dtype == torch.bfloat16
    assert again.config.architectures == [type(model).__name__]
    assert all(torch.equal(p, again.get_parameter(name)) for name, p in model.named_parameters())
    assert model_on_meta(str(tmp_path / "model"), torch.bfloat16) is not None


def test_a_rank_that_does_not_write_takes_part_alone(tmp_path):
    seen = []

    def blocks():
        for i in range(3):
            seen.append(i)
            yield {}

    Streamed(None, blocks, 1).save_pretrained(tmp_path / "model")
    assert seen == [0, 1, 2]
    assert not (tmp_path / "model").exists()


FAMILIES = [
    ("qwen2", {"tie_word_embeddings": True}),
    ("llama", {"tie_word_embeddings": False}),
    ("qwen3_moe", {**EXPERTS["qwen3_moe"], "tie_word_embeddings": False}),
]


def test_a_layer_is_one_piece_and_so_is_each_weight_outside():
    names = ["embed.weight", "layers.0.a", "layers.0.experts.3.b", "layers.1.a", "norm.weight", "head.weight"]
    assert pieces(names) == [names[:1], names[1:3], names[3:4], names[4:5], names[5:]]
    assert pieces([]) == []


@pytest.mark.parametrize(("family", "changes"), FAMILIES, ids=["tied", "untied", "experts"])
def test_an_empty_module_takes_no_memory_and_is_the_model_once_filled(family, changes):
    model = build(family, changes)
    empty = without_memory(model)
    assert all(p.is_meta for p in empty.parameters())
    made = filled(empty, model.named_parameters(), torch.device("cpu"))
    assert [n for n, _ in made.named_parameters()] == [n for n, _ in model.named_parameters()]
    assert torch.equal(next_logits(made, [3, 4, 5]), next_logits(model, [3, 4, 5]))
    assert all(p.is_meta for p in empty.parameters())
    with torch.no_grad():
        for p in made.parameters():
            p.zero_()
    assert any(bool(p.any()) for p in model.parameters())
