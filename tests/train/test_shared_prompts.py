"""An update that computes each prompt once is the update that computes every row alone."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.families import SLOW, build
from tests.train import episodes
from tests.train.batches import OPTIMIZER, distance, groups_of, longer, parts_of, policy, settings_of, stale, weights
from verizero.pipeline.config.sections import TrainConfig
from verizero.pipeline.rl.parts import Parts
from verizero.pipeline.train import prepare
from verizero.pipeline.train.collate import (
    MIN_PROMPTS_PER_RANK,
    collate,
    packed_batches,
    rank_micro_batches,
    row_lengths,
    rows_of_ranks,
)
from verizero.pipeline.train.ranks import ALONE
from verizero.pipeline.train.sharing import (
    MIN_SPARED_SHARE,
    MIN_SPARED_SHARE_ON_GPU,
    packed_prompts,
    prompts_of_rows,
    spared_share,
)
from verizero.pipeline.train.step import update
from verizero.pipeline.train.torch_backend import TorchBackend
from verizero.pipeline.types import PromptOf


def model_of(kind: str, seed: int = 0) -> Any:
    return policy(seed, layers=2) if kind == "qwen2" else build(*SLOW[kind], seed, torch.float64)


def begun(share: bool, parts: Parts, kind: str = "qwen2") -> TorchBackend:
    backend = TorchBackend(model_of(kind), ALONE, TrainConfig(share_prompts=share))
    backend.start(OPTIMIZER, 10)
    backend.reference = model_of(kind, 100).requires_grad_(False)
    if parts.critic is not None:
        backend.start_critic(parts.critic.shared, OPTIMIZER, 10)
    return backend


CASES: dict[str, dict[str, Any]] = {
    "grpo": {"kl_coef": 0.05, "num_epochs": 2, "num_minibatches": 2},
    "gspo": {"num_minibatches": 2},
    "clip_cov": {"num_minibatches": 2},
    "reinforce_pp": {"kl_coef": 0.1},
}
"""Algorithm -> its params."""


# qwen2's norms are in float32, whose rounding AdamW enlarges; all of gpt2 is in float64.
@pytest.mark.integration
@pytest.mark.parametrize(("kind", "close"), [("qwen2", 1e-6), ("gpt2", 1e-11)])
@pytest.mark.parametrize("tokens", [30, 10_000])
@pytest.mark.parametrize("name", CASES)
def test_updates_are_those_of_rows_alone(name: str, tokens: int, kind: str, close: float) -> None:
    shared, alone = updated(name, tokens, kind, True), updated(name, 10_000, kind, False)
    assert distance(shared[0], alone[0]) < close
    for ours, wanted in zip(shared[1], alone[1], strict=True):
        assert ours == pytest.approx(wanted, rel=10 * close, abs=close)


@cache
def updated(name: str, tokens: int, kind: str, share: bool) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """The weights and the metrics after two updates."""
    parts = parts_of(name, **CASES[name])
    backend = begun(share, parts, kind)
    metrics = [
        update(backend, parts, stale(longer(groups_of(5, seed=s)), 1, 0, 2), settings_of(parts, tokens, step=s))
        for s in range(2)
    ]
    return weights(backend), metrics


def shares(groups: Any, parts: Parts, backend: TorchBackend) -> bool:
    return prepare.prepare(backend, parts, groups, settings_of(parts)).batch.prompts is not None


@pytest.mark.integration
def test_where_prompts_are_shared() -> None:
    grpo, ppo = parts_of("grpo"), parts_of("ppo")
    backend = begun(True, grpo)
    assert shares(longer(groups_of()), grpo, backend)
    assert not shares(longer(groups_of()), grpo, begun(False, grpo))
    assert not shares(groups_of(1, 2, seed=5, lost=False), grpo, backend), "too little is spared"
    assert not shares(longer(groups_of()), ppo, begun(True, ppo)), "a critic has a forward of its own"
    assert not shares(episodes.episodes_of(3, 4), grpo, backend)
    assert shares(episodes.wrapped(longer(groups_of())), grpo, backend), "episodes of one turn are single responses"


@pytest.mark.parametrize(("device", "least"), [("cpu", MIN_SPARED_SHARE), ("cuda", MIN_SPARED_SHARE_ON_GPU)])
def test_the_least_that_is_spared_depends_on_the_device(device: str, least: float) -> None:
    class Elsewhere(TorchBackend):
        def can_pack(self) -> bool:
            return True

    class Model(torch.nn.Module):
        device: Any = None
        dtype = torch.float32
        config = policy().config

    model = Model()
    model.device = torch.device(device)
    grpo, backend = parts_of("grpo"), Elsewhere(model, config=TrainConfig(compile="off"))
    decided = {}
    for num, size, tokens in ((1, 2, 0), (8, 2, 0), (4, 4, 0), (4, 4, 5), (8, 8, 5)):
        groups = longer(groups_of(num, size, seed=5, lost=False), tokens)
        prompts = prompts_of_rows(groups)
        assert prompts is not None
        decided[spared_share(prompts)] = packed_prompts(backend, grpo, groups) is not None
    assert decided == {spared: spared >= least for spared in decided}
    assert set(decided.values()) == {True, False}


def test_prompts_of_rows() -> None:
    groups = longer(groups_of(3))
    prompts = prompts_of_rows(groups)
    assert prompts is not None
    batch = collate(groups, 0)
    lengths, group_of = row_lengths(groups)
    assert [p.row_tokens for p in prompts] == lengths
    assert [p.number for p in prompts] == group_of
    for row, p in enumerate(prompts):
        assert not bool(batch.response_mask[row, : p.tokens].any())
        assert bool(batch.response_mask[row, p.tokens : p.row_tokens].all())
    twice = prompts_of_rows([*groups, *groups])
    assert twice is not None
    assert [p.number for p in twice] == group_of * 2, "groups with equal prompts share them"


def test_the_share_that_is_spared() -> None:
    prompts = [PromptOf(0, 6, 10), PromptOf(0, 6, 8), PromptOf(1, 2, 12)]
    assert spared_share(prompts) == pytest.approx(6 / 30)
    assert spared_share([]) == 0.0


@st.composite
def rows(draw: st.DrawFn) -> tuple[list[int], list[PromptOf]]:
    sizes = draw(st.lists(st.integers(1, 20), min_size=1, max_size=12))
    of_row = draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=40))
    lengths = [sizes[n] + draw(st.integers(0, 30)) for n in of_row]
    return lengths, [PromptOf(n, sizes[n], total) for n, total in zip(of_row, lengths, strict=True)]


@settings(deadline=None)
@given(rows(), st.integers(1, 120), st.integers(1, 4))
def test_rows_are_dealt_once_and_micro_batches_hold_what_they_may(
    drawn: tuple[list[int], list[PromptOf]], budget: int, size: int
) -> None:
    lengths, prompts = drawn
    owned = rows_of_ranks(lengths, size, prompts)
    assert sorted(i for own in owned for i in own) == list(range(len(lengths)))
    if len({p.number for p in prompts}) >= MIN_PROMPTS_PER_RANK * size:
        ranks_of = [{prompts[i].number for i in own} for own in owned]
        assert sum(map(len, ranks_of)) == len({p.number for p in prompts}), "a prompt is on one rank"
    hands = [rank_micro_batches(lengths, budget, rank, size, prompts) for rank in range(size)]
    assert len({len(own) + idle for own, idle in hands}) == 1
    for (own, _), mine in zip(hands, owned, strict=True):
        assert sorted(i for piece in own for i in piece) == sorted(mine)
        for piece in own:
            once = sum({prompts[i].number: prompts[i].tokens for i in piece}.values())
            computed = once + sum(lengths[i] - prompts[i].tokens for i in piece)
            assert computed <= budget or len(piece) == 1


def test_rows_of_a_prompt_are_neighbours() -> None:
    prompts = [PromptOf(i % 2, 5, 10) for i in range(8)]
    assert packed_batches([10] * 8, prompts, 25) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert packed_batches([10] * 8, prompts, 15) == [[0, 2], [4, 6], [1, 3], [5, 7]]


def test_log_probs_are_computed_of_fewer_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = parts_of("grpo", kl_coef=0.0)
    computed = []
    for share in (True, False):
        backend, seen = begun(share, parts), [0]

        def counted(module: Any, inputs: Any, seen: list[int] = seen) -> None:
            seen[0] += inputs[0].shape[:-1].numel()

        backend.model.model.layers[0].mlp.register_forward_pre_hook(counted)
        update(backend, parts, longer(groups_of()), settings_of(parts, 10_000))
        computed.append(seen[0])
    assert computed[0] < 0.6 * computed[1]
    assert torch.is_grad_enabled()
