"""Rows that share beginnings are a tree, and packed rows fill micro-batches: what is computed once, where, by whom."""

import random
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.families import SLOW, build
from tests.oracles.varlen import varlen_attn
from tests.train import episodes
from tests.train.batches import (
    OPTIMIZER,
    groups_of,
    longer,
    parts_of,
    policy,
    settings_of,
)
from tests.train.episodes import forked
from tests.train.trees import lone, paths_of, rows_of_tree
from verizero.pipeline.config.sections import TrainConfig
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models import runs, varlen
from verizero.pipeline.models.runs import packed_width
from verizero.pipeline.train import trees
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.collate import (
    MIN_BRANCHES_PER_RANK,
    collate,
    micros_of,
    packed_batches,
    rank_micro_batches,
    rows_of_ranks,
    sizes_of,
)
from verizero.pipeline.train.ranks import Ranks
from verizero.pipeline.train.step import prepare, update
from verizero.pipeline.train.trees import best_paths, ids_of_rows, packed_paths, packs_rows, saved_share
from verizero.pipeline.types import Run


def begun(model=None, **train):
    backend = Backend(policy() if model is None else model, config=TrainConfig(**train))
    backend.start(OPTIMIZER, 10)
    return backend


def is_packed(groups, backend, parts):
    return prepare(backend, parts, groups, settings_of(parts)).batch.paths is not None


def test_where_rows_are_a_tree():
    grpo = parts_of("grpo", kl_coef=0.0)
    assert is_packed(longer(groups_of()), begun(), grpo)
    assert is_packed(forked(), begun(), grpo)
    assert is_packed(episodes.wrapped(longer(groups_of())), begun(), grpo)
    assert not is_packed(longer(groups_of()), begun(packing="off"), grpo)
    assert not is_packed(groups_of(1, 2, seed=5, lost=False), begun(), grpo), "too little is saved"


def test_a_policy_that_cannot_be_packed_is_counted():
    grpo, gemma = parts_of("grpo", kl_coef=0.0), build(*SLOW["gemma2 with softcapping"])
    for groups, fallbacks in ((longer(groups_of()), 1.0), (groups_of(1, 2, seed=5, lost=False), None)):
        metrics = update(begun(gemma), grpo, groups, settings_of(grpo))
        assert metrics.get("tree/fallbacks") == fallbacks
        assert metrics["tree/ratio"] == 1.0


@pytest.mark.parametrize(("device", "packs"), [("cpu", True), ("cuda", False)])
def test_the_least_that_is_saved_depends_on_the_device(device, packs):
    rows = [[1, 2, 3, 4, *range(n, n + 16)] for n in range(10, 15)]  # 16 of 100 tokens
    paths = best_paths(rows, device)
    assert saved_share(paths) == pytest.approx(0.16 * packs)
    assert packs or paths == lone([20] * 5)


def test_paths_are_those_of_the_rows_of_the_batch(monkeypatch):
    monkeypatch.setattr(trees, "MIN_SAVED_TOKENS", 1)
    groups = [*forked(), *longer(groups_of(2))]
    batch, (paths, is_refused) = collate(groups, 0), packed_paths(begun(), ids_of_rows(groups))
    lengths = batch.attention_mask.sum(1).tolist()
    found = [list(memoryview(row).cast("i")) for row in ids_of_rows(groups)]
    assert found == [row[:n] for row, n in zip(batch.input_ids.tolist(), lengths, strict=True)]
    assert not is_refused
    assert [path[-1].end for path in paths] == lengths
    tokens_of_runs = {}
    for row, path in zip(batch.input_ids.tolist(), paths, strict=True):
        for begin, run in zip([0, *(r.end for r in path)], path, strict=False):
            assert tokens_of_runs.setdefault(run.number, row[begin : run.end]) == row[begin : run.end]
    twice, _ = packed_paths(begun(), ids_of_rows([*groups, *groups]))
    assert twice[: len(paths)] == twice[len(paths) :], "equal rows have the same runs"


@given(st.integers(0, 10_000), st.sampled_from([1, 4, 20]))
def test_a_tree_has_each_beginning_once(seed, min_saved):
    rows = rows_of_tree(random.Random(seed))
    paths, beginnings = paths_of(rows, min_saved), {tuple(row[:n]) for row in rows for n in range(1, len(row) + 1)}
    assert [path[-1].end for path in paths] == [len(row) for row in rows]
    computed = sum(sizes_of(*paths).values())
    assert len(beginnings) <= computed <= sum(map(len, rows))
    if min_saved == 1:
        assert computed == len(beginnings)
    num_rows = {}
    begins = {
        run.number: begin for path in paths for begin, run in zip([0, *(r.end for r in path)], path, strict=False)
    }
    for path in paths:
        for run in path:
            num_rows[run.number] = num_rows.get(run.number, 0) + 1
    for path in paths:
        for run in path:
            assert run.end > begins[run.number]
            shared = num_rows[run.number] - 1
            assert shared == 0 or (run.end - begins[run.number]) * shared >= min_saved


@given(st.integers(0, 10_000), st.integers(1, 120), st.integers(1, 4))
def test_rows_are_dealt_once_and_micro_batches_hold_what_they_may(seed, budget, size):
    rows = rows_of_tree(random.Random(seed))
    paths, lengths = paths_of(rows), [len(row) for row in rows]
    owned = rows_of_ranks(lengths, size, paths)
    assert sorted(i for own in owned for i in own) == list(range(len(rows)))
    if len({path[0].number for path in paths}) >= MIN_BRANCHES_PER_RANK * size:
        branches = [{paths[i][0].number for i in own} for own in owned]
        assert sum(map(len, branches)) == len(set.union(*branches)), "a branch is on one rank"
    hands = [rank_micro_batches(lengths, budget, rank, size, paths) for rank in range(size)]
    assert len({len(own) + idle for own, idle in hands}) == 1
    for (own, _), mine in zip(hands, owned, strict=True):
        assert sorted(i for piece in own for i in piece) == sorted(mine)
        for piece in own:
            assert sum(sizes_of(*(paths[i] for i in piece)).values()) <= budget or len(piece) == 1


def test_every_forward_has_one_of_few_shapes(monkeypatch):
    """Shapes of the blocks' inputs, over updates of batches of any lengths; one row alone is longer than the rest.

    By the slow double of torch's kernel, in the widths of a GPU.
    """
    monkeypatch.setattr(varlen, "kernel_for", lambda *_: varlen_attn)
    monkeypatch.setattr(runs, "packed_width", lambda n, most, device: packed_width(n, most, "cuda"))
    parts, shapes = parts_of("grpo", kl_coef=0.0), set()
    backend = begun(packing="on", micro_batch_tokens=256)

    def seen(module, inputs):
        shapes.add(tuple(inputs[0].shape[:-1]))

    packs_rows(backend)  # its proof has a shape of its own
    backend.model.model.layers[0].register_forward_pre_hook(seen)
    for seed in range(3):
        update(backend, parts, longer(groups_of(3 + seed, 5, seed)), settings_of(parts, 256))
    assert shapes <= {(1, 256), (1, 128), (1, 64)}
    assert (1, 256) in shapes


def test_micro_batches_are_nearly_full():
    parts, groups = parts_of("grpo", kl_coef=0.0), longer(groups_of(12, 6, 3))
    backend = begun(packing="on", micro_batch_tokens=200)
    batch = prepare(backend, parts, groups, settings_of(parts, 200)).batch
    micros = micros_of(batch, list(range(len(batch.rewards))), 200)
    total = sum(sizes_of(*(batch.paths or ())).values())
    assert len(micros) <= -(-total // 200) + 1


def test_where_rows_are_packed():
    assert not packs_rows(begun()), "auto on the CPU"
    assert not packs_rows(begun(packing="off"))
    assert packs_rows(begun(packing="on"))
    gemma = Backend(build(*SLOW["gemma2 with softcapping"]), config=TrainConfig(packing="on"))
    with pytest.raises(ConfigError, match=r"train\.packing=on.*set train\.packing: auto"):
        packs_rows(gemma)


def test_auto_packs_where_attention_of_variable_length_was_proved(monkeypatch):
    for by_kernel in (True, False):
        monkeypatch.setattr(varlen, "kernel_for", lambda *_, by_kernel=by_kernel: varlen_attn if by_kernel else None)
        assert packs_rows(begun()) is by_kernel
    monkeypatch.setattr(varlen, "kernel_for", lambda *_: varlen_attn)
    assert not packs_rows(Backend(build(*SLOW["gemma2 with softcapping"]), config=TrainConfig()))


class WithARankThatFails(Ranks):
    """The other ranks say that they cannot."""

    def any(self, flag):
        return True


@pytest.mark.parametrize("packing", ["auto", "on"])
def test_ranks_pack_together_or_not_at_all(packing, monkeypatch):
    """With rows padded on one rank alone, ranks would have other numbers of micro-batches, and wait for ever."""
    monkeypatch.setattr(varlen, "kernel_for", lambda *_: varlen_attn)
    backend = begun(packing=packing)
    assert packs_rows(backend)
    backend.ranks = WithARankThatFails()
    with nullcontext() if packing == "auto" else pytest.raises(ConfigError, match=r"train\.packing=on"):
        assert not packs_rows(backend)


def test_rows_of_a_run_are_neighbours_and_others_fill_the_gaps_that_longer_ones_leave():
    assert packed_batches(lone([70, 60, 40, 30]), 100) == [[0, 3], [1, 2]]
    assert packed_batches(lone([100]), 64) == [[0]], "a row that is too long is alone"
    shared = [(Run(0, 20), Run(1, 50)), (Run(0, 20), Run(2, 50)), (Run(3, 45),), (Run(0, 20), Run(4, 40))]
    assert packed_batches(shared, 100) == [[0, 1, 3], [2]], "a row goes where its runs are"
    paths = [(Run(i % 2, 5), Run(10 + i, 10)) for i in range(8)]
    assert packed_batches(paths, 25) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert packed_batches(paths, 15) == [[0, 2], [4, 6], [1, 3], [5, 7]]
