"""An update of packed micro-batches is the update of padded ones, however rows are cut."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any

import pytest
import torch

from tests.models.families import SLOW, build
from tests.oracles.varlen import varlen_attn
from tests.train import episodes
from tests.train.batches import (
    OPTIMIZER,
    distance,
    groups_of,
    longer,
    parts_of,
    policy,
    settings_of,
    stale,
    weights,
    without_tree,
)
from tests.train.rank_threads import gradient_of
from tests.train.trees import lone
from verizero.pipeline.config.sections import TrainConfig
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models import runs, varlen
from verizero.pipeline.models.lora import Adapted
from verizero.pipeline.models.widths import packed_width
from verizero.pipeline.rl.parts import Parts
from verizero.pipeline.train import trees
from verizero.pipeline.train.collate import packed_batches, sizes_of
from verizero.pipeline.train.micros import micros_of
from verizero.pipeline.train.prepare import prepare
from verizero.pipeline.train.ranks import Ranks
from verizero.pipeline.train.step import _policy_gradient, update
from verizero.pipeline.train.torch_backend import TorchBackend
from verizero.pipeline.train.trees import packs_rows
from verizero.pipeline.types import Group, Run

CASES: dict[str, tuple[str, dict[str, Any], Callable[[], list[Group]]]] = {
    "GRPO": ("grpo", {"kl_coef": 0.05, "num_epochs": 2, "num_minibatches": 2}, lambda: stale(longer(groups_of(4)), 1, 0, 2)),  # noqa: E501
    "GSPO, short prompts": ("gspo", {"num_minibatches": 2}, lambda: groups_of(4)),
    "PPO": ("ppo", {"num_minibatches": 2, "bootstrap_truncated": True}, lambda: longer(groups_of(4))),
    "PPO, shared critic": ("ppo", {"critic_shared": True, "kl_coef": 0.1}, lambda: longer(groups_of(4))),
    "episodes": ("grpo", {"num_minibatches": 2}, lambda: episodes.episodes_of(3, 4)),
    "observations": ("grpo", {"num_minibatches": 2}, lambda: episodes.episodes_of(3, 4)),
    "LoRA": ("grpo", {"kl_coef": 0.05}, lambda: longer(groups_of(4))),
}  # fmt: skip


@pytest.fixture(params=["calls", "kernel"])
def attention(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Attention in calls, as the CPU has it; or by the slow double of torch's kernel, in the widths of a GPU."""
    if request.param == "kernel":
        monkeypatch.setattr(varlen, "kernel_for", lambda *_: varlen_attn)
        monkeypatch.setattr(runs, "packed_width", lambda n, most, device: packed_width(n, most, "cuda"))
    return str(request.param)


def begun(parts: Parts, name: str = "", **train: Any) -> TorchBackend:
    model = policy()
    adapted = Adapted(model, 2, 4.0, (), 7) if name == "LoRA" else None
    backend = TorchBackend(model, config=TrainConfig(**train), adapted=adapted)
    backend.start(OPTIMIZER, 10)
    backend.refresh_reference()
    if name != "LoRA":
        backend.reference = policy(100).requires_grad_(False)
    if parts.critic is not None:
        backend.start_critic(parts.critic.shared, OPTIMIZER, 10)
    return backend


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "shares"), [*((name, True) for name in CASES), ("GRPO", False), ("PPO", False), ("LoRA", False)]
)
def test_updates_are_those_of_padded_rows(
    name: str, shares: bool, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "MIN_SAVED_TOKENS" if shares else "MIN_SAVED_SHARE", 1)
    packed, padded = updated(name, packing="on"), of_padded_rows(name)
    assert all((metrics["tree/ratio"] > 1) is shares for metrics in packed[2])
    # The norms of qwen2 are in float32, whose rounding AdamW enlarges.
    assert distance(packed[0], padded[0]) < 1e-6
    if packed[1]:
        assert distance(packed[1], padded[1]) < 1e-6
    for ours, wanted in zip(packed[2], padded[2], strict=True):
        assert without_tree(ours) == pytest.approx(without_tree(wanted), rel=1e-5, abs=1e-6)


def updated(name: str, **train: Any) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, float]]]:
    """The policy's weights, the critic's and the metrics after two updates."""
    tokens = 60
    algorithm, params, groups = CASES[name]
    parts = parts_of(algorithm, **params)
    backend = begun(parts, name, **train, micro_batch_tokens=tokens)
    metrics = []
    for step in range(2):
        how = settings_of(parts, tokens, step=step, observation_coef=0.7 * (name == "observations"))
        metrics.append(update(backend, parts, groups(), how))
    critic: Any = backend.critic
    values = {} if critic is None else {k: v.clone() for k, v in (critic.model or critic.head).state_dict().items()}
    return weights(backend), values, metrics


@cache
def of_padded_rows(name: str) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, float]]]:
    return updated(name, packing="off")


@pytest.mark.integration
def test_a_cut_changes_nothing(attention: str) -> None:
    """Row by row, in pieces of which some are longer rows, and all rows at once."""
    parts = parts_of("grpo", kl_coef=0.05)
    ends = []
    for size in (1, 40, 64, 1000):
        backend = begun(parts, packing="on", micro_batch_tokens=size)
        update(backend, parts, longer(groups_of(4)), settings_of(parts, size))
        ends.append(weights(backend))
    assert max(distance(end, ends[0]) for end in ends[1:]) < 1e-6


def test_the_micro_batches_of_all_ranks_add_up(attention: str) -> None:
    """Those of three ranks, idle ones among them, have the gradient and the metrics of one rank's."""
    parts, how = parts_of("grpo", kl_coef=0.05), settings_of(parts_of("grpo"), 60)
    ends, idle = [], 0
    for size in (1, 3):
        backend = begun(parts, packing="on", micro_batch_tokens=60)
        prepared = prepare(backend, parts, longer(groups_of(4)), how)
        rows = list(range(len(prepared.batch.rewards)))
        micros = [m for rank in range(size) for m in micros_of(prepared.batch, rows, 60, Ranks(rank, size))]
        idle += sum(not bool(m.batch.response_mask.any()) for m in micros)
        metrics = _policy_gradient(backend, parts, prepared, micros, how, 0)
        ends.append((metrics, gradient_of(backend)))
    assert idle > 0
    assert ends[1][0] == pytest.approx(ends[0][0], rel=1e-6, abs=1e-9)
    torch.testing.assert_close(ends[1][1], ends[0][1], rtol=1e-4, atol=1e-7)  # norms are in float32


@pytest.mark.parametrize("attention", ["kernel"], indirect=True)
def test_every_forward_has_one_of_few_shapes(attention: str) -> None:
    """Shapes of the blocks' inputs, over updates of batches of any lengths; one row alone is longer than the rest."""
    parts, shapes = parts_of("grpo", kl_coef=0.0), set()
    backend = begun(parts, packing="on", micro_batch_tokens=256)

    def seen(module: Any, inputs: Any) -> None:
        shapes.add(tuple(inputs[0].shape[:-1]))

    packs_rows(backend)  # its proof has a shape of its own
    backend.model.model.layers[0].register_forward_pre_hook(seen)
    for seed in range(3):
        update(backend, parts, longer(groups_of(3 + seed, 5, seed)), settings_of(parts, 256))
    assert shapes <= {(1, 256), (1, 128), (1, 64)}
    assert (1, 256) in shapes


def test_micro_batches_are_nearly_full() -> None:
    parts, groups = parts_of("grpo"), longer(groups_of(12, 6, 3))
    backend = begun(parts, packing="on", micro_batch_tokens=200)
    batch = prepare(backend, parts, groups, settings_of(parts, 200)).batch
    micros = micros_of(batch, list(range(len(batch.rewards))), 200)
    total = sum(sizes_of(*(batch.paths or ())).values())
    assert len(micros) <= -(-total // 200) + 1


def test_where_rows_are_packed() -> None:
    parts = parts_of("grpo")
    assert not packs_rows(begun(parts)), "auto on the CPU"
    assert not packs_rows(begun(parts, packing="off"))
    assert packs_rows(begun(parts, packing="on"))
    gemma = TorchBackend(build(*SLOW["gemma2 with softcapping"]), config=TrainConfig(packing="on"))
    with pytest.raises(ConfigError, match=r"train\.packing=on.*set train\.packing: auto"):
        packs_rows(gemma)
    with pytest.raises(ValueError, match=r"train\.packing=on with train\.sequence_parallel=2"):
        TrainConfig(packing="on", sequence_parallel=2)


def test_auto_packs_where_attention_of_variable_length_was_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    for by_kernel in (True, False):
        monkeypatch.setattr(varlen, "kernel_for", lambda *_, by_kernel=by_kernel: varlen_attn if by_kernel else None)
        assert packs_rows(begun(parts_of("grpo"))) is by_kernel
    monkeypatch.setattr(varlen, "kernel_for", lambda *_: varlen_attn)
    assert not packs_rows(TorchBackend(build(*SLOW["gemma2 with softcapping"]), config=TrainConfig()))


class WithARankThatFails(Ranks):
    """The other ranks say that they cannot."""

    def any(self, flag: bool) -> bool:
        return True


@pytest.mark.parametrize("packing", ["auto", "on"])
def test_ranks_pack_together_or_not_at_all(packing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With rows padded on one rank alone, ranks would have other numbers of micro-batches, and wait for ever."""
    monkeypatch.setattr(varlen, "kernel_for", lambda *_: varlen_attn)
    backend = begun(parts_of("grpo"), packing=packing)
    assert packs_rows(backend)
    backend.ranks = WithARankThatFails()
    with nullcontext() if packing == "auto" else pytest.raises(ConfigError, match=r"train\.packing=on"):
        assert not packs_rows(backend)


def test_rows_fill_the_gaps_that_longer_ones_leave() -> None:
    assert packed_batches(lone([70, 60, 40, 30]), 100) == [[0, 3], [1, 2]]
    assert packed_batches(lone([100]), 64) == [[0]], "a row that is too long is alone"
    shared = [(Run(0, 20), Run(1, 50)), (Run(0, 20), Run(2, 50)), (Run(3, 45),), (Run(0, 20), Run(4, 40))]
    assert packed_batches(shared, 100) == [[0, 1, 3], [2]], "a row goes where its runs are"


def test_a_row_alone_sees_its_own_tokens(attention: str) -> None:
    """Another row's tokens change, and its log-probs stay what they were, bit for bit."""
    parts = parts_of("grpo", kl_coef=0.0)
    backend = begun(parts, packing="on", micro_batch_tokens=1000)
    found = []
    for token in (3, 9):
        groups = longer(groups_of(2))
        first = groups[0].members[0]
        ids = (*first.rollout.prompt_ids[:-1], token)
        changed = dataclasses.replace(first, rollout=dataclasses.replace(first.rollout, prompt_ids=ids))
        groups[0] = dataclasses.replace(groups[0], members=(changed, *groups[0].members[1:]))
        how = settings_of(parts, 1000)
        batch = prepare(backend, parts, groups, how).batch
        (micro,) = micros_of(batch, list(range(len(batch.rewards))), 1000)
        logprobs, _ = backend.logprobs(micro.batch.input_ids, micro.batch.response_mask > 0, 1.0, targets=micro.targets)
        found.append(torch.zeros_like(logprobs).index_copy(0, micro.rows, logprobs))
    differs = [i for i in range(len(found[0])) if not torch.equal(found[0][i], found[1][i])]
    assert differs == [0]
