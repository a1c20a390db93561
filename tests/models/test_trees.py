"""Random trees of rows: log-probs, entropies and gradients are those of the rows one by one, in every family."""

from __future__ import annotations

import os
import random

import pytest
import torch
from torch import Tensor

from tests.models.families import FAST, SLOW, VOCAB, tiny, with_exact_norms
from tests.models.test_runs import Batch, one_by_one, ours
from tests.train.trees import paths_of, rows_of_tree
from verizero.pipeline.models.forward import can_pack

FAMILIES = [name for name in [*FAST, *SLOW] if name != "gemma2 with softcapping"]
NUM_TREES = int(os.environ.get("VERIZERO_RANDOM_TREES", "70"))
"""Over all families; `VERIZERO_RANDOM_TREES=500 pytest tests/models/test_trees.py` tries 500."""


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


def check(name: str, seed: int) -> None:
    model, data = with_exact_norms(tiny(name, dtype=torch.float64)), tree(seed)
    logprobs, gradients = ours(model, data, random.Random(seed).choice([None, 7]))
    wanted, wanted_gradients = one_by_one(model, *data)
    torch.testing.assert_close(logprobs, wanted, rtol=1e-12, atol=1e-12)
    assert apart(gradients, wanted_gradients) < 1e-12


@pytest.mark.parametrize("name", FAMILIES)
def test_trees_in_float64(name: str) -> None:
    for seed in range(3):
        check(name, 1000 + 17 * seed + FAMILIES.index(name))


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_more_trees_in_float64(name: str) -> None:
    for seed in range(FAMILIES.index(name), NUM_TREES, len(FAMILIES)):
        check(name, seed)


@pytest.mark.parametrize("name", FAMILIES)
def test_trees_in_float32(name: str) -> None:
    """Against float64."""
    model, data = tiny(name), tree(FAMILIES.index(name))
    assert can_pack(model)
    logprobs, gradients = ours(model, data)
    wanted, wanted_gradients = one_by_one(model, *data)
    torch.testing.assert_close(logprobs.double(), wanted, rtol=1e-5, atol=1e-5)
    assert apart(gradients, wanted_gradients) < 1e-5


@pytest.mark.parametrize("name", FAMILIES)
def test_trees_in_bfloat16_are_as_near_as_packed_rows(name: str) -> None:
    """To float64; rows that share nothing are packed in the same type."""
    data = tree(50 + FAMILIES.index(name))
    lone = [*data[:2], [(path[-1]._replace(number=1000 + i),) for i, path in enumerate(data[2])]]
    model = tiny(name)
    wanted, _ = one_by_one(model.to(torch.bfloat16), *data)
    as_tree, as_rows = (
        float((ours(model, (x[0], x[1], x[2]))[0].double() - wanted).abs().mean()) for x in (data, lone)
    )
    assert as_tree < 1.5 * as_rows + 1e-3


def test_a_tree_with_another_token_differs() -> None:
    """The comparison can fail: a token of the first run is another one, and all rows that have it change."""
    model, (ids, where, paths) = tiny("qwen2 tied"), tree(3)
    logprobs, _ = ours(model, (ids, where, paths))
    changed = ids.clone()
    changed[:, 0] = (changed[:, 0] + 1) % VOCAB
    assert not torch.allclose(ours(model, (changed, where, paths))[0], logprobs, atol=1e-3)
