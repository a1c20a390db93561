"""Packed rows: loss and gradient are those of the rows one by one, and no text sees another."""

from __future__ import annotations

import copy
import functools
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.families import FAST, SLOW, VOCAB, build, tiny
from tests.oracles.varlen import varlen_attn
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models import packed, varlen
from verizero.pipeline.models.cpu.blocks import MIN_SEGMENT_TOKENS, Blocks, segments_of
from verizero.pipeline.models.cpu.onednn import use_onednn
from verizero.pipeline.models.forward import logits_at
from verizero.pipeline.models.packed import bins, check_packs, packed_states
from verizero.pipeline.models.widths import packed_width
from verizero.pipeline.train.collate import packed_batches
from verizero.pipeline.train.texts import Row, row_after, text_gradient
from verizero.pipeline.train.torch_backend import TorchBackend


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


def ours(model: Any, rows: list[Row], packs: bool, tokens: int) -> tuple[float, dict[str, Tensor]]:
    backend = TorchBackend(model)
    backend.discard()
    seen = text_gradient(backend, rows, 1.0, 0, tokens, packs)
    return seen["loss"], {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def worst(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Largest difference of gradients, relative to the largest entry of each parameter's."""
    assert found.keys() == wanted.keys()
    return max(float((found[n].double() - w.double()).abs().max() / w.abs().max()) for n, w in wanted.items())


@pytest.mark.integration
@pytest.mark.parametrize("name", ["qwen2 tied", "qwen3 with bias", "llama narrow heads"])
def test_the_blocks_of_our_own(name: str) -> None:
    model = tiny(name)
    use_onednn(model)
    rows = texts(count=40)
    assert sum(len(ids) for ids, _ in rows) > MIN_SEGMENT_TOKENS, "several segments are tried"
    wanted_loss, wanted = one_by_one(model, rows)
    for tokens in (200, 100_000):
        loss, found = ours(model, rows, True, tokens)
        assert loss == pytest.approx(wanted_loss, rel=1e-5)
        assert worst(found, wanted) <= 1e-4  # float32 against float64
        plain_loss, plain = ours(model, rows, False, tokens)
        assert loss == pytest.approx(plain_loss, rel=1e-5)
        assert worst(found, plain) <= 1e-5 * 10  # two orders of summing, both in float32


@pytest.mark.integration
@pytest.mark.parametrize("name", ["gpt2", "llama with scaled rotations", "mistral with a sliding window", "qwen2 tied"])
def test_models_of_transformers_in_float64(name: str) -> None:
    model = tiny(name, dtype=torch.float64)
    rows = texts(count=12)
    wanted_loss, wanted = one_by_one(model, rows)
    for tokens, packs in itertools.product((100, 100_000), (True, False)):
        loss, found = ours(model, rows, packs, tokens)
        assert loss == pytest.approx(wanted_loss, rel=1e-9)
        assert worst(found, wanted) <= 1e-6


@pytest.mark.parametrize("name", ["qwen2 tied", "mistral with a sliding window"])
@pytest.mark.parametrize("tokens", [100, 600])
def test_in_runs_where_a_kernel_attends_to_texts_of_different_lengths(
    name: str, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow double takes the place of the GPU's kernel. Micro-batches have the few widths of a packed update."""
    asked = []

    @functools.wraps(varlen_attn)
    def kernel(query: Tensor, *arguments: Any, **named: Any) -> Tensor:
        asked.append(len(query))
        return varlen_attn(query, *arguments, **named)

    monkeypatch.setattr(varlen, "_kernel", lambda: kernel)
    monkeypatch.setattr(varlen, "is_proved", lambda device, dtype: True)
    model = tiny(name, dtype=torch.float64)
    rows = texts(count=12)
    wanted_loss, wanted = one_by_one(model, rows)
    loss, found = ours(model, rows, True, tokens)
    assert loss == pytest.approx(wanted_loss, rel=1e-9)
    assert worst(found, wanted) <= 1e-6
    shapes = {packed_width(n, tokens, rounded=True) for n in range(1, sum(len(row.ids) for row in rows))}
    layers = model.config.num_hidden_layers
    assert set(asked[-layers:]) <= shapes
    assert model not in packed._PROVED, "the other way to pack was taken"


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_both_attentions_of_transformers(attention: str) -> None:
    model = build("gemma2", {"head_dim": 8, "sliding_window": 4}, dtype=torch.float64)
    model.set_attn_implementation(attention)
    rows = texts(count=8, longest=20)
    lengths = [len(ids) for ids, _ in rows]
    found = packed_states(model, torch.tensor([t for ids, _ in rows for t in ids]), lengths)
    for (ids, _), got in zip(rows, found.split(lengths), strict=True):
        wanted = model.base_model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0]
        exact = 1e-9 if attention == "sdpa" else 1e-5  # eager's softmax is in float32
        torch.testing.assert_close(got, wanted, rtol=exact, atol=exact)


def test_a_text_does_not_see_its_neighbours() -> None:
    model = tiny("qwen2 tied")
    use_onednn(model)
    ids = torch.randint(0, VOCAB, (4, 9), generator=torch.Generator().manual_seed(1))
    where = torch.zeros(ids.shape, dtype=torch.bool)
    where[2, 1:6] = True
    lengths = [9, 9, 6, 6]
    first = logits_at(model, ids, where, lengths=lengths)
    others = ids.clone()
    others[[0, 1, 3]] = (others[[0, 1, 3]] + 1) % VOCAB
    assert torch.equal(first, logits_at(model, others, where, lengths=lengths))


def test_a_model_without_such_masks_is_refused() -> None:
    model = build("mamba", {"num_hidden_layers": 1, "state_size": 4})
    with pytest.raises(ConfigError, match=r"'mamba'.*packing: false"):
        check_packs(model)
    check_packs(tiny("gpt2"))


def test_a_head_that_is_more_than_a_product_is_refused() -> None:
    model = tiny("gemma2 with softcapping")
    ids = torch.ones(1, 4, dtype=torch.int64)
    with pytest.raises(ConfigError, match="packing: false"):
        logits_at(model, ids, ids.bool().index_fill(1, torch.tensor([0]), False), lengths=[4])


def test_bins_hold_each_row_once_and_none_is_too_full() -> None:
    lengths = [5, 1, 9, 4, 4, 3, 2, 9]
    found = bins(lengths)
    assert sorted(i for rows in found for i in rows) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in rows) <= 9 for rows in found)
    assert len(found) == 5, "37 tokens in bins of 9"


def test_micro_batches_count_real_tokens() -> None:
    lengths = [30, 2, 2, 2, 2, 30, 30]
    found = packed_batches(lengths, 64)
    assert [sum(lengths[i] for i in rows) for rows in found] == [60, 38]
    assert packed_batches([100], 64) == [[0]]


def test_segments_cover_all_tokens_and_end_where_padding_would_be_much() -> None:
    lengths = [100] * 6 + [50] * 20 + [49] * 3
    found = segments_of(lengths)
    assert [(s.begin, s.end) for s in found] == [(0, 600), (600, sum(lengths))]
    assert found[0].at is None
    assert found[1].at is not None


@pytest.mark.parametrize("name", [*FAST])
def test_packed_states_are_those_of_each_row(name: str) -> None:
    model = tiny(name)
    body = Blocks(model)
    lengths = [20, 20, 17, 5, 1]
    ids = torch.randint(0, VOCAB, (sum(lengths),), generator=torch.Generator().manual_seed(2))
    found = body.packed_states(model, ids, lengths)
    for row, got in zip(ids.split(lengths), found.split(lengths), strict=True):
        torch.testing.assert_close(got, body.hidden_states(model, row[None])[0], rtol=1e-5, atol=1e-5)


def test_slow_families_pack_too_or_say_no() -> None:
    for name in SLOW:
        check_packs(tiny(name))
