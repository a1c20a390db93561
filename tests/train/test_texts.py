"""Texts: loss and gradient are those of the rows one by one, packed and padded, and no text sees another."""

from __future__ import annotations

import copy
import functools
import itertools
from typing import Any, Literal, get_args

import pytest
import torch
from torch import Tensor

from tests.models.families import VOCAB, build, tiny, with_exact_norms
from tests.oracles.varlen import varlen_attn
from tests.train.trees import lone
from verizero.pipeline.config.sections import TrainConfig
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models import runs, varlen
from verizero.pipeline.models.forward import Targets, logits_at
from verizero.pipeline.models.runs import MIN_CALL_TOKENS, Runs
from verizero.pipeline.models.widths import packed_width
from verizero.pipeline.train.texts import Row, row_after, text_gradient
from verizero.pipeline.train.torch_backend import TorchBackend
from verizero.pipeline.train.trees import packed_paths

Packing = Literal["auto", "on", "off"]


def texts(seed: int = 0, count: int = 40, longest: int = 60) -> list[Row]:
    """Rows of many lengths; two spans of each are trained on. One has nothing to predict but its last token."""
    draw = torch.Generator().manual_seed(seed)
    rows = [row_after((3, 4), 1)]
    for _ in range(count):
        n = int(torch.randint(2, longest, (1,), generator=draw))
        a, b, c = sorted(int(torch.randint(1, n + 1, (1,), generator=draw)) for _ in range(3))
        spans = ((a, b), (c, n)) if b > a else ((min(a, n - 1), n),)
        rows.append(Row(tuple(torch.randint(0, VOCAB, (n,), generator=draw).tolist()), spans))
    return rows


def one_by_one(model: Any, rows: list[Row]) -> tuple[float, dict[str, Tensor]]:
    """Mean negative log-likelihood of trained tokens and its gradient, by the model's own forward of each row alone."""
    model = copy.deepcopy(model).double()
    total = sum(row.num_trained for row in rows)
    loss = torch.zeros((), dtype=torch.float64)
    for ids, spans in rows:
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)
        for t in (t for begin, end in spans for t in range(begin, end)):
            loss = loss - logits[t - 1, ids[t]] / total
    loss.backward()
    return float(loss.detach()), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def ours(model: Any, rows: list[Row], packing: Packing, tokens: int) -> tuple[float, dict[str, Tensor]]:
    backend = TorchBackend(model, config=TrainConfig(packing=packing))
    backend.discard()
    seen = text_gradient(backend, rows, 1.0, 0, tokens)
    return seen["loss"], {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def worst(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Largest difference of gradients, relative to the largest entry of each parameter's."""
    assert found.keys() == wanted.keys()
    return max(float((found[n].double() - w.double()).abs().max() / w.abs().max()) for n, w in wanted.items())


@pytest.mark.integration
@pytest.mark.parametrize("name", ["qwen2 tied", "qwen3 with bias", "llama narrow heads"])
def test_models_of_transformers_in_float32(name: str) -> None:
    model = tiny(name)
    rows = texts(count=40)
    assert sum(len(ids) for ids, _ in rows) > MIN_CALL_TOKENS, "attention has several calls"
    wanted_loss, wanted = one_by_one(model, rows)
    for tokens in (200, 100_000):
        loss, found = ours(model, rows, "on", tokens)
        assert loss == pytest.approx(wanted_loss, rel=1e-5)
        assert worst(found, wanted) <= 1e-4  # float32 against float64
        plain_loss, plain = ours(model, rows, "off", tokens)
        assert loss == pytest.approx(plain_loss, rel=1e-5)
        assert worst(found, plain) <= 1e-5 * 10  # two orders of summing, both in float32


@pytest.mark.integration
@pytest.mark.parametrize("name", ["gpt2", "llama with scaled rotations", "mistral with a sliding window", "qwen2 tied"])
def test_models_of_transformers_in_float64(name: str) -> None:
    """Some texts begin alike, so that they are a tree."""
    model = with_exact_norms(tiny(name, dtype=torch.float64))
    rows = texts(count=12, longest=40)
    prompt = max((row.ids for row in rows), key=len)[:12]
    rows += [Row((*prompt, *row.ids), row.spans) for row in rows[:6]]
    wanted_loss, wanted = one_by_one(model, rows)
    of_first_forward = ours(model, rows, "off", 100)
    for tokens, packing in itertools.product((100, 100_000), get_args(Packing)):
        loss, found = ours(model, rows, packing, tokens)
        assert loss == pytest.approx(wanted_loss, rel=1e-9)
        assert worst(found, wanted) <= 1e-6
        assert loss == pytest.approx(of_first_forward[0], rel=1e-12)
        assert worst(found, of_first_forward[1]) <= 1e-12


@pytest.mark.parametrize(("longest", "packs"), [(60, True), (9, False)])
def test_texts_are_packed_where_much_would_be_padding(longest: int, packs: bool) -> None:
    rows = [row_after(tuple(range(3, 3 + n)), 1) for n in range(8, longest + 1)]
    rows = [row_after((i, *row.ids), 1) for i, row in enumerate(rows)]  # that begin differently
    backend = TorchBackend(tiny("qwen2 tied"))
    assert (packed_paths(backend, [row.ids for row in rows], texts=True)[0] is not None) is packs
    assert packed_paths(backend, [row.ids for row in rows])[0] is None, "rows of an update"


@pytest.mark.parametrize("name", ["qwen2 tied", "mistral with a sliding window"])
@pytest.mark.parametrize("tokens", [100, 600])
def test_where_a_kernel_attends_to_texts_of_different_lengths(
    name: str, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow double takes the place of the GPU's kernel. Micro-batches have the few widths that they have there."""
    asked = []

    @functools.wraps(varlen_attn)
    def kernel(query: Tensor, *arguments: Any, **named: Any) -> Tensor:
        asked.append(len(query))
        return varlen_attn(query, *arguments, **named)

    monkeypatch.setattr(varlen, "kernel_for", lambda *_: kernel)
    monkeypatch.setattr(runs, "packed_width", lambda n, most, device: packed_width(n, most, "cuda"))
    model = tiny(name, dtype=torch.float64)
    rows = texts(count=12)
    wanted_loss, wanted = one_by_one(model, rows)
    loss, found = ours(model, rows, "on", tokens)
    assert loss == pytest.approx(wanted_loss, rel=1e-9)
    assert worst(found, wanted) <= 1e-6
    shapes = {packed_width(n, tokens, "cuda") for n in range(1, sum(len(row.ids) for row in rows))}
    layers = model.config.num_hidden_layers
    assert set(asked[-layers:]) <= shapes


def test_a_text_does_not_see_its_neighbours() -> None:
    model = tiny("qwen2 tied")
    ids = torch.randint(0, VOCAB, (4, 9), generator=torch.Generator().manual_seed(1))
    where = torch.zeros(ids.shape, dtype=torch.bool)
    where[2, 1:6] = True
    targets = Targets(where.flatten().nonzero()[:, 0], Runs.of(lone([9, 9, 6, 6]), 9))
    first = logits_at(model, ids, where, targets=targets)
    others = ids.clone()
    others[[0, 1, 3]] = (others[[0, 1, 3]] + 1) % VOCAB
    assert torch.equal(first, logits_at(model, others, where, targets=targets))


@pytest.mark.parametrize("name", ["gemma2 with softcapping", "mamba"])
def test_texts_of_a_model_that_cannot_be_packed_are_padded_and_counted(name: str) -> None:
    model = build("mamba", {"num_hidden_layers": 1, "state_size": 4}) if name == "mamba" else tiny(name)
    for packing, fallbacks in (("auto", 1.0), ("off", None)):
        backend = TorchBackend(model, config=TrainConfig(packing=packing))
        assert text_gradient(backend, texts(count=3), 1.0, 0, 100).get("tree/fallbacks") == fallbacks
    with pytest.raises(ConfigError, match=rf"train\.packing=on: model type '{name.split()[0]}"):
        text_gradient(TorchBackend(model, config=TrainConfig(packing="on")), texts(count=3), 1.0, 0, 100)
