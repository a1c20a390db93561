"""Packed rows, of which some share runs, and random trees of rows: log-probs, entropies and gradients of each alone."""

import contextlib
import copy
import os
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.families import FAST, SLOW, VOCAB, build, tiny, with_exact_norms
from tests.train.trees import paths_of, rows_of_tree
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models.forward import Layout, Targets, can_pack, logprobs_at
from verizero.pipeline.models.load import recompute_activations
from verizero.pipeline.models.runs import MIN_CALL_TOKENS, Runs, states
from verizero.pipeline.types import Path, Run

ROWS = ((9, (5, 3, 1, 0, 12)), (4, (7, 7)), (15, (2,)), (1, (4, 9)))
"""For each prompt its length, and those of its responses: an empty one and a prompt with a single response too."""
Batch = tuple[Tensor, Tensor, list[Path]]


def batch(rows: tuple[tuple[int, tuple[int, ...]], ...] = ROWS) -> Batch:
    draw = torch.Generator().manual_seed(5)
    paths: list[Path] = [
        (Run(n, size), *([Run(10 * n + k + 10, size + own)] if own else []))
        for n, (size, responses) in enumerate(rows)
        for k, own in enumerate(responses)
    ]
    paths = paths[::2] + paths[1::2]  # rows with equal prompts are not neighbours
    starts = [torch.randint(3, VOCAB, (size,), generator=draw) for size, _ in rows]
    ids = torch.zeros(len(paths), max(path[-1].end for path in paths), dtype=torch.int64)
    where = torch.zeros_like(ids, dtype=torch.bool)
    for i, path in enumerate(paths):
        (number, size), end = path[0], path[-1].end
        ids[i, :size] = starts[number]
        ids[i, size:end] = torch.randint(3, VOCAB, (end - size,), generator=draw)
        where[i, size:end] = True
    return ids, where, paths


def pull(values: Tensor) -> Tensor:
    return torch.sin(torch.arange(values.numel(), dtype=values.dtype)).view_as(values)


def one_by_one(model: Any, ids: Tensor, where: Tensor, paths: list[Path]) -> tuple[Tensor, dict[str, Tensor]]:
    """Log-probs at temperature 0.9, and the gradient of a sum of them and of entropies, by a forward of each row."""
    model = copy.deepcopy(model).double()
    logprobs, entropies = (torch.zeros(ids.shape, dtype=torch.float64) for _ in range(2))
    for i, path in enumerate(paths):
        end = path[-1].end
        logits = model(input_ids=ids[i : i + 1, :end], use_cache=False).logits[0] / 0.9
        rows = logits.log_softmax(-1)
        for t in where[i].nonzero()[:, 0].tolist():
            logprobs[i, t] = rows[t - 1, ids[i, t]]
            entropies[i, t] = -(rows[t - 1].exp() * rows[t - 1]).sum()
    (logprobs * pull(logprobs) + 0.3 * entropies * pull(entropies)).sum().backward()
    return logprobs.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def targets_of(where: Tensor, paths: list[Path]) -> Targets:
    return Targets(where.flatten().nonzero()[:, 0], Runs.of(paths, where.shape[1]))


def ours(model: Any, data: Batch, chunk: int | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    ids, where, paths = data
    model.zero_grad()
    logprobs, entropies = logprobs_at(
        model, ids, where, 0.9, True, layout=Layout(targets=targets_of(where, paths), chunk_tokens=chunk)
    )
    (logprobs * pull(logprobs) + 0.3 * entropies * pull(entropies)).sum().backward()
    return logprobs.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.run
def test_calls_of_attention_are_cut_where_padding_would_be_much():
    rows = ((40, (300, 290, 30, 20)), (10, (200, 25)))
    data = batch(rows)
    calls, _ = Runs.of(data[2], data[0].shape[1])._calls
    assert len(calls) > 2, "the short responses have a call of their own"
    assert sum(n for _, own in rows for n in own) > MIN_CALL_TOKENS
    model = build("llama", {"max_position_embeddings": 512}, dtype=torch.float64)
    logprobs, gradients = ours(model, data)
    wanted, wanted_gradients = one_by_one(model, *data)
    assert torch.allclose(logprobs, wanted, atol=1e-6)
    assert apart(gradients, wanted_gradients) <= 1e-6


def test_each_prompt_is_computed_once():
    ids, _, paths = batch()
    runs = Runs.of(paths, ids.shape[1])
    # Of a response, all tokens but the last.
    assert len(runs.source) == sum(size + sum(max(0, own - 1) for own in responses) for size, responses in ROWS)


def test_a_head_that_is_more_than_a_product_and_attention_that_is_not_torchs_are_padded():
    assert not can_pack(tiny("gemma2 with softcapping"))
    assert not can_pack(build("mamba", {"num_hidden_layers": 1, "state_size": 4}))
    eager = tiny("gpt2")
    eager.set_attn_implementation("eager")
    assert not can_pack(eager)


@pytest.mark.parametrize(
    ("dtype", "part", "good"),
    [(torch.float32, 1.01, False), (torch.bfloat16, 0.5, False), (torch.bfloat16, 1 + 2**-6, True)],
)
def test_an_attention_that_differs_by_more_than_rounding_is_refused(dtype, part, good, monkeypatch):
    model, plain = tiny("gpt2").to(dtype), Runs.attend
    monkeypatch.setattr(Runs, "attend", lambda self, q, k, v, *rest: plain(self, q, k, part * v, *rest))
    words = "packed rows of this gpt2 are not what they are alone, so rows are padded"
    with contextlib.nullcontext() if good else pytest.warns(UserWarning, match=words):
        assert can_pack(model) is good


def test_a_forward_of_padded_rows_is_what_it_was():
    model, (ids, where, _) = tiny("gpt2"), batch()
    before = logprobs_at(model, ids, where, 1.0)[0]
    assert can_pack(model)
    assert torch.equal(logprobs_at(model, ids, where, 1.0)[0], before)


def test_scores_that_are_bent_are_refused():
    model = build("gemma2", {"head_dim": 8, "final_logit_softcapping": None, "attn_logit_softcapping": 5.0})
    ids, where, prompts = batch()
    layout = Runs.of(prompts, where.shape[1])
    with pytest.raises(ConfigError, match="the attention has softcap"):
        states(model, ids.flatten()[layout.source], layout)
    assert not can_pack(model)


FAMILIES = [name for name in [*FAST, *SLOW] if name != "gemma2 with softcapping"]
NUM_TREES = int(os.environ.get("VERIZERO_RANDOM_TREES", "45"))
"""Over all families; `VERIZERO_RANDOM_TREES=500 pytest tests/models/test_runs.py` tries 500."""


def tree(seed: int) -> Batch:
    """Rows of a random tree, half of whose tokens train, with their paths; runs of one token too."""
    rng = random.Random(seed)
    rows = rows_of_tree(rng)
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
    where = torch.zeros_like(ids, dtype=torch.bool)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        where[i, 1 : len(row)] = torch.tensor([rng.random() < 0.5 for _ in row[1:]])
        where[i, len(row) - 1] = True
    return ids, where, list(paths_of(rows, rng.choice([1, 1, 5])))


def apart(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Largest difference of gradients, relative to the largest of all: rows of two tokens have none of their keys."""
    assert found.keys() == wanted.keys()
    gaps = [float((found[n].double() - w).abs().max()) for n, w in wanted.items()]
    return max(gaps) / max(float(w.abs().max()) for w in wanted.values())


@pytest.mark.run
@pytest.mark.parametrize("name", FAMILIES)
def test_trees_in_float64(name):
    for seed in range(FAMILIES.index(name), NUM_TREES, len(FAMILIES)):
        model, data = with_exact_norms(tiny(name, dtype=torch.float64)), tree(seed)
        if seed % 2:
            recompute_activations(model)
        logprobs, gradients = ours(model, data, random.Random(seed).choice([None, 7]))
        wanted, wanted_gradients = one_by_one(model, *data)
        torch.testing.assert_close(logprobs, wanted, rtol=1e-12, atol=1e-12)
        assert apart(gradients, wanted_gradients) < 1e-12


@pytest.mark.parametrize("name", FAMILIES)
def test_trees_in_bfloat16_are_as_near_as_packed_rows(name):
    """To float64; rows that share nothing are packed in the same type."""
    data = tree(50 + FAMILIES.index(name))
    lone = [*data[:2], [(path[-1]._replace(number=1000 + i),) for i, path in enumerate(data[2])]]
    model = tiny(name)
    assert can_pack(model)
    wanted, _ = one_by_one(model.to(torch.bfloat16), *data)
    as_tree, as_rows = (
        float((ours(model, (x[0], x[1], x[2]))[0].double() - wanted).abs().mean()) for x in (data, lone)
    )
    assert as_tree < 1.5 * as_rows + 1e-3
