"""An update that computes once what rows share is the update that computes every row alone."""

from __future__ import annotations

import dataclasses
import random
from array import array
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.families import SLOW, build, with_exact_norms
from tests.train import episodes, sampled
from tests.train.batches import (
    OPTIMIZER,
    finite,
    groups_of,
    longer,
    parts_of,
    policy,
    recorded_step,
    settings_of,
    stale,
    without_tree,
)
from tests.train.episodes import forked
from tests.train.trees import lone, paths_of, rows_of_tree
from verizero.pipeline.config.sections import TrainConfig
from verizero.pipeline.models.lora import Adapted
from verizero.pipeline.registry import names
from verizero.pipeline.rl.parts import Parts
from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.train import prepare, trees
from verizero.pipeline.train.collate import (
    MIN_BRANCHES_PER_RANK,
    collate,
    packed_batches,
    rank_micro_batches,
    rows_of_ranks,
    sizes_of,
)
from verizero.pipeline.train.step import update
from verizero.pipeline.train.torch_backend import TorchBackend
from verizero.pipeline.train.trees import best_paths, ids_of_rows, packed_paths, saved_share
from verizero.pipeline.types import Group, Path, Run

CASES: dict[str, tuple[str, dict[str, Any], Callable[[], list[Group]]]] = {
    **{name: (name, {}, forked) for name in names("algorithms") if name != "custom"},
    "pass_at_k": ("pass_at_k", {"k": 2}, forked),
    "flash_reinforce": ("flash_reinforce", {"mismatch_reject": {"mean_binary_kl": 9.0}}, forked),
    "single responses": ("grpo", {"kl_coef": 0.05}, lambda: stale(longer(groups_of(4)), 1, 0, 2)),
    "LoRA": ("grpo", {"kl_coef": 0.05}, lambda: longer(groups_of(3))),
    "shared critic": ("ppo", {"critic_shared": True, "kl_coef": 0.1, "bootstrap_truncated": True}, forked),
    "observations": ("grpo", {}, forked),
}
"""Name -> an algorithm, its params, and groups."""
FEW = ("grpo", "gspo", "ppo", "single responses", "LoRA", "shared critic", "observations")
Updated = tuple[dict[str, float], list[torch.Tensor]]


def updated(name: str, packing: str, tokens: int) -> Updated:
    """The metrics of an update, and the gradients that it gave the optimisers."""
    algorithm, params, groups = CASES[name]
    parts = parts_of(algorithm, **params)
    model = with_exact_norms(policy()) if name == "LoRA" else build(*SLOW["gpt2"], 0, torch.float64)
    adapted = Adapted(model, 2, 4.0, (), 7) if name == "LoRA" else None
    backend = TorchBackend(model, config=TrainConfig(packing=packing), adapted=adapted)
    backend.start(OPTIMIZER, 10)
    backend.refresh_reference()
    if parts.critic is not None:
        backend.start_critic(parts.critic.shared, OPTIMIZER, 10)
    gradients: list[torch.Tensor] = []
    for own in (backend, backend.critic):
        if own is not None:
            own.step = recorded_step(own, gradients)  # type: ignore[method-assign]
    how = settings_of(parts, tokens, step=60, observation_coef=0.7 * (name == "observations"))
    return update(backend, parts, groups(), how), gradients


@pytest.fixture(params=[60, 10_000])
def tokens(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The limit of a micro-batch, which cuts the tree or does not; runs are shared however short they are."""
    monkeypatch.setattr(trees, "MIN_SAVED_TOKENS", 1)
    return int(request.param)


def check(name: str, tokens: int) -> None:
    (ours, gradients), (wanted, wanted_gradients) = updated(name, "auto", tokens), updated(name, "off", tokens)
    assert ours.pop("tree/ratio") > 1.2
    assert ours.pop("tree/tokens_saved") > 0
    assert (wanted.pop("tree/ratio"), wanted.pop("tree/tokens_saved")) == (1.0, 0.0)
    assert finite(ours)
    exact = 1e-12
    assert ours == pytest.approx(wanted, rel=100 * exact, abs=exact)
    assert len(gradients) == len(wanted_gradients) > 0
    for found, other in zip(gradients, wanted_gradients, strict=True):
        assert float((found - other).abs().max() / other.abs().max()) < exact


@pytest.mark.integration
@pytest.mark.parametrize("name", FEW)
def test_updates_are_those_of_rows_alone(name: str, tokens: int) -> None:
    check(name, tokens)


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("tokens", [60], indirect=True)
@pytest.mark.parametrize("name", [name for name in CASES if name not in FEW])
def test_updates_of_each_preset_are_those_of_rows_alone(name: str, tokens: int) -> None:
    check(name, tokens)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["qwen3_moe", "qwen2_moe", "mixtral"])
@pytest.mark.parametrize("recorded", [True, False])
def test_experts_are_those_that_each_row_recorded(name: str, recorded: bool, tokens: int) -> None:
    """A prompt's first token has other experts in one of its rows, which then shares nothing."""
    model = sampled.model_of(name, torch.float64)
    groups = sampled.groups_of(model, Sampling(sampled.MAX, 1.0, keep_routing=recorded))
    if recorded:
        groups[0] = rerouted(groups[0])
    found = []
    for packing in ("auto", "off"):
        backend, gradients = begun(sampled.model_of(name, torch.float64), packing=packing), list[torch.Tensor]()
        backend.step = recorded_step(backend, gradients)  # type: ignore[method-assign]
        parts = parts_of("grpo", kl_coef=0.0)
        found.append((update(backend, parts, groups, settings_of(parts, tokens, temperature=1.0)), gradients[0]))
    (ours, gradient), (wanted, other) = found
    assert ours.pop("tree/ratio") > (1.0 if recorded else 1.1)
    assert (ours.get("routing/changed", 0) > 0) is recorded
    assert without_tree(ours) == pytest.approx(without_tree(wanted), rel=1e-5, abs=1e-7)
    assert float((gradient - other).abs().max() / other.abs().max()) < 1e-5  # norms are in float32


def rerouted(group: Group) -> Group:
    """The group whose first response has other experts at the first token of its prompt."""
    first, *others = group.members
    routing = first.rollout.routing
    assert routing is not None
    experts = array("h", routing.experts)
    for i in range(routing.layers * routing.top_k):
        experts[i] = (experts[i] + 1) % 6
    changed = dataclasses.replace(routing, experts=experts.tobytes())
    rollout = dataclasses.replace(first.rollout, routing=changed)
    return dataclasses.replace(group, members=(dataclasses.replace(first, rollout=rollout), *others))


def begun(model: Any = None, **train: Any) -> TorchBackend:
    backend = TorchBackend(policy() if model is None else model, config=TrainConfig(**train))
    backend.start(OPTIMIZER, 10)
    return backend


def is_packed(groups: list[Group], backend: TorchBackend, parts: Parts) -> bool:
    return prepare.prepare(backend, parts, groups, settings_of(parts)).batch.paths is not None


def test_where_rows_are_a_tree() -> None:
    grpo = parts_of("grpo", kl_coef=0.0)
    assert is_packed(longer(groups_of()), begun(), grpo)
    assert is_packed(forked(), begun(), grpo)
    assert is_packed(episodes.wrapped(longer(groups_of())), begun(), grpo)
    assert not is_packed(longer(groups_of()), begun(packing="off"), grpo)
    assert not is_packed(groups_of(1, 2, seed=5, lost=False), begun(), grpo), "too little is saved"


def test_a_policy_that_cannot_be_packed_is_counted() -> None:
    grpo, gemma = parts_of("grpo", kl_coef=0.0), build(*SLOW["gemma2 with softcapping"])
    for groups, fallbacks in ((longer(groups_of()), 1.0), (groups_of(1, 2, seed=5, lost=False), None)):
        metrics = update(begun(gemma), grpo, groups, settings_of(grpo))
        assert metrics.get("tree/fallbacks") == fallbacks
        assert metrics["tree/ratio"] == 1.0


@pytest.mark.parametrize(("device", "packs"), [("cpu", True), ("cuda", False)])
def test_the_least_that_is_saved_depends_on_the_device(device: str, packs: bool) -> None:
    rows = [[1, 2, 3, 4, *range(n, n + 16)] for n in range(10, 15)]  # 16 of 100 tokens
    paths = best_paths(rows, device)
    assert saved_share(paths) == pytest.approx(0.16 * packs)
    assert packs or paths == lone([20] * 5)


def test_paths_are_those_of_the_rows_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "MIN_SAVED_TOKENS", 1)
    groups = [*forked(), *longer(groups_of(2))]
    batch, (paths, is_refused) = collate(groups, 0), packed_paths(begun(), ids_of_rows(groups))
    assert paths is not None
    assert not is_refused
    assert [path[-1].end for path in paths] == batch.attention_mask.sum(1).tolist()
    tokens_of_runs: dict[int, list[int]] = {}
    for row, path in zip(batch.input_ids.tolist(), paths, strict=True):
        for begin, run in zip([0, *(r.end for r in path)], path, strict=False):
            assert tokens_of_runs.setdefault(run.number, row[begin : run.end]) == row[begin : run.end]
    twice, _ = packed_paths(begun(), ids_of_rows([*groups, *groups]))
    assert twice is not None
    assert twice[: len(paths)] == twice[len(paths) :], "equal rows have the same runs"


@settings(deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1, 4, 20]))
def test_a_tree_has_each_beginning_once(seed: int, min_saved: int) -> None:
    rows = rows_of_tree(random.Random(seed))
    paths, beginnings = paths_of(rows, min_saved), {tuple(row[:n]) for row in rows for n in range(1, len(row) + 1)}
    assert [path[-1].end for path in paths] == [len(row) for row in rows]
    computed = sum(sizes_of(*paths).values())
    assert len(beginnings) <= computed <= sum(map(len, rows))
    if min_saved == 1:
        assert computed == len(beginnings)
    num_rows: dict[int, int] = {}
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


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 120), st.integers(1, 4))
def test_rows_are_dealt_once_and_micro_batches_hold_what_they_may(seed: int, budget: int, size: int) -> None:
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


def test_rows_of_a_run_are_neighbours() -> None:
    paths: list[Path] = [(Run(i % 2, 5), Run(10 + i, 10)) for i in range(8)]
    assert packed_batches(paths, 25) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert packed_batches(paths, 15) == [[0, 2], [4, 6], [1, 3], [5, 7]]


def test_tokens_of_all_rows_have_their_ids() -> None:
    groups = forked()
    batch = collate(groups, 0)
    lengths = batch.attention_mask.sum(1).tolist()
    found = [list(memoryview(row).cast("i")) for row in ids_of_rows(groups)]
    assert found == [row[:n] for row, n in zip(batch.input_ids.tolist(), lengths, strict=True)]


@pytest.mark.integration
def test_fewer_tokens_are_computed() -> None:
    parts, computed = parts_of("grpo", kl_coef=0.0), []
    for packing in ("auto", "off"):
        backend, num = begun(policy(), packing=packing), [0]

        def counted(module: Any, inputs: Any, num: list[int] = num) -> None:
            num[0] += inputs[0].shape[:-1].numel()

        assert backend.can_pack()  # the trial has a forward of its own
        backend.model.model.layers[0].mlp.register_forward_pre_hook(counted)
        update(backend, parts, forked(), settings_of(parts, 10_000))
        computed.append(num[0])
    assert computed[0] < 0.6 * computed[1]
