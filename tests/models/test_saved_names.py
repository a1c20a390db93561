"""Weights under the names of a saved folder, layer by layer; and modules that take no memory until they are filled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.models.families import build, next_logits
from verizero.pipeline.models.saved_names import filled, in_pieces, pieces, without_memory

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
FAMILIES = [
    ("qwen2", {"tie_word_embeddings": True}),
    ("llama", {"tie_word_embeddings": False}),
    ("qwen3_moe", {**EXPERTS, "tie_word_embeddings": False}),
]


def test_a_layer_is_one_piece_and_so_is_each_weight_outside() -> None:
    names = ["embed.weight", "layers.0.a", "layers.0.experts.3.b", "layers.1.a", "norm.weight", "head.weight"]
    assert pieces(names) == [names[:1], names[1:3], names[3:4], names[4:5], names[5:]]
    assert pieces([]) == []


def test_a_layer_outside_blocks_comes_with_its_adapters() -> None:
    head = [f"lm_head.{part}.weight" for part in ("base_layer", "lora_A.default", "lora_B.default")]
    assert pieces(["model.norm.weight", *head]) == [["model.norm.weight"], head]


class Gathering:
    """Weights that are whole within a context only; what was whole at once is noted."""

    def __init__(self, model: Any) -> None:
        self.held = {id(p): p.data for p in model.parameters()}
        self.sizes: list[int] = []
        for p in model.parameters():
            p.data = torch.empty(0)

    @contextmanager
    def __call__(self, *parameters: torch.Tensor) -> Iterator[None]:
        self.sizes.append(sum(self.held[id(p)].numel() for p in parameters))
        for p in parameters:
            p.data = self.held[id(p)].clone()
        yield
        for p in parameters:
            p.data = torch.empty(0)


@pytest.mark.parametrize(("family", "changes"), FAMILIES, ids=["tied", "untied", "experts"])
def test_weights_that_are_gathered_layer_by_layer_are_those_of_a_saved_folder(
    family: str, changes: dict[str, object], tmp_path: Path
) -> None:
    model = build(family, changes)
    model.save_pretrained(tmp_path)
    wanted, total = load_file(tmp_path / "model.safetensors"), sum(p.numel() for p in model.parameters())
    gathering = Gathering(model)
    found = dict(in_pieces(model, gathering))
    assert set(found) == set(wanted)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert sum(gathering.sizes) == total
    assert max(gathering.sizes) < total / 2


@pytest.mark.parametrize(("family", "changes"), FAMILIES, ids=["tied", "untied", "experts"])
def test_an_empty_module_takes_no_memory_and_is_the_model_once_filled(family: str, changes: dict[str, object]) -> None:
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
