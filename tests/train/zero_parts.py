"""One rank of two: critics, adapters and options of DeepSpeed's and FSDP's trainers, compared with torch alone.

Run by `test_deepspeed_parts.py` as `python -m tests.train.zero_parts FOLDER PART,PART`, and by `test_fsdp_backend.py`
with a third word "fsdp"; prints the distances of each part.
"""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.models.families import build
from tests.train.batches import groups_of, longer, pairs_of, parts_of, settings_of, two_layers, without_tree
from tests.train.episodes import episodes_of, forked
from tests.train.zero_rank import (
    NUM_STEPS,
    OPTIMIZER,
    SAVED_AT,
    distance,
    divided,
    joined,
    once,
    resumed,
    save,
    steps,
    weights,
)
from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.errors import NonFiniteError
from verizero.pipeline.models.forward import Replay
from verizero.pipeline.models.load import load_model, ready
from verizero.pipeline.models.lora import Adapted, MergedTwin
from verizero.pipeline.models.unloaded import model_on_meta
from verizero.pipeline.preferences.base import load_preference
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.critic import ShardedCritic
from verizero.pipeline.train.deepspeed_backend import DeepSpeedBackend
from verizero.pipeline.train.preference import PreferenceBatch, PreferenceSettings, preference_update, side_logprobs
from verizero.pipeline.train.ranks import Ranks, leave, sharing_sequences
from verizero.pipeline.train.step import update
from verizero.pipeline.train.torch_backend import TorchBackend

PPO: dict[str, Any] = {"num_minibatches": 1, "num_epochs": 1, "bootstrap_truncated": True}
FSDP: dict[str, Any] = {"backend": "fsdp"} if "fsdp" in sys.argv else {}
"""Fields of `train` for FSDP; empty: DeepSpeed is tried."""
CRITIC = OptimizerConfig(learning_rate=3e-3, weight_decay=0.1, max_grad_norm=0.5)
TOKENS = 120
"""Of a micro-batch: each rank has two or three of them in an update."""
Run = tuple[list[dict[str, float]], dict[str, torch.Tensor]]
"""Metrics of the steps of a run, and the policy's weights after them."""


def begun(backend: Backend, shared: bool | None = None) -> Backend:
    backend.start(OPTIMIZER, NUM_STEPS)
    backend.refresh_reference()
    if shared is not None:
        backend.start_critic(shared, CRITIC, NUM_STEPS)
    return backend


def ppo(backend: Backend, first: int, last: int) -> list[dict[str, float]]:
    parts = parts_of("ppo", **PPO)
    groups = [forked(seed=s) if s % 2 else groups_of(seed=s) for s in range(last)]
    return [update(backend, parts, groups[s], settings_of(parts, TOKENS, step=s)) for s in range(first, last)]


def critic_weights(backend: Any) -> dict[str, torch.Tensor]:
    critic = backend.critic
    if hasattr(critic, "sharded"):
        every = critic.sharded.gathered()
        pairs = every if isinstance(critic, ShardedCritic) else (pair for block in every for pair in block.items())
        return {n: w.float().clone() for n, w in pairs}
    return {n: p.detach().float().clone() for n, p in (critic.model or critic.head).named_parameters()}


def apart(a: list[dict[str, float]], b: list[dict[str, float]]) -> float:
    """Greatest difference between the metrics of two runs."""
    return max(abs(x[k] - y[k]) for x, y in zip(a, b, strict=True) for k in without_tree(y))


@functools.cache
def with_critic(
    ranks: Ranks, shared: bool
) -> tuple[list[dict[str, float]], dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Of torch alone: metrics of all steps, the policy's and the critic's weights, and the critic's before them."""

    def compute() -> tuple[list[dict[str, float]], dict[str, Any], dict[str, Any], dict[str, Any]]:
        alone = begun(TorchBackend(two_layers()), shared)
        before = critic_weights(alone)
        return ppo(alone, 0, NUM_STEPS), weights(alone), critic_weights(alone), before

    return once(ranks, compute)


def run_of(backend: Backend, taught: Callable[[Backend], list[dict[str, float]]]) -> Run:
    return taught(begun(backend)), weights(backend)


def all_steps(backend: Backend) -> list[dict[str, float]]:
    return steps(backend, 0, NUM_STEPS)


@functools.cache
def plain(ranks: Ranks) -> Run:
    """The run of torch alone."""
    return once(ranks, lambda: run_of(TorchBackend(two_layers()), all_steps))


def gap(run: Run, wanted: Run) -> dict[str, float]:
    return {"weights": distance(run[1], wanted[1]), "metrics": apart(run[0], wanted[0])}


def critic(config: dict[str, Any], shared: bool, ranks: Ranks, folder: Path) -> dict[str, float]:
    """Policy and critic against torch alone after all steps; and a resumed run against an unbroken one."""
    wanted, policy_alone, critic_alone, critic_before = with_critic(ranks, shared)
    backend = begun(divided(config, two_layers(), ranks), shared)
    seen = ppo(backend, 0, SAVED_AT)
    folder.mkdir(parents=True, exist_ok=True)
    ranks.barrier()
    backend.save(folder, save)
    ranks.barrier()
    seen += ppo(backend, SAVED_AT, NUM_STEPS)
    again = resumed(config, folder, ranks)
    ppo(again, SAVED_AT, NUM_STEPS)
    moved = distance(critic_weights(backend), critic_before)
    return {
        "weights": distance(weights(backend), policy_alone),
        "critic": distance(critic_weights(backend), critic_alone),
        "metrics": apart(seen, wanted),
        "resumed": distance(weights(again), weights(backend)),
        "critic resumed": distance(critic_weights(again), critic_weights(backend)),
        "moved": moved,
        "refused": refuses(again),
    }


def refuses(backend: Any) -> float:
    """1 if a critic's gradient that is not finite is refused before anything moved."""
    ids, where = torch.tensor([[3, 4, 5, 6]]), torch.tensor([[False, True, True, True]])
    before = critic_weights(backend)
    backend.critic.backward(backend.critic.values(ids, where).sum() * math.nan)
    try:
        backend.critic.require_finite()
    except NonFiniteError:
        backend.discard()
        return float(distance(critic_weights(backend), before) == 0)
    return 0.0


def critics(ranks: Ranks, root: Path) -> dict[str, Any]:
    if FSDP:
        return {
            "own": critic(FSDP, False, ranks, root / "own"),
            "shared": critic(FSDP, True, ranks, root / "shared"),
        }
    found = {}
    for zero, shared in ((0, False), (1, True), (2, False), (3, True)):
        name = f"zero{zero} {'shared' if shared else 'own'}"
        found[name] = critic({"zero": zero}, shared, ranks, root / name)
    found["offload own"] = critic({"zero": 3, "offload": "all"}, False, ranks, root / "offload")
    return found


def chunks(ranks: Ranks, root: Path) -> dict[str, Any]:
    """Chunks of three tokens, with weights that are whole and divided."""
    wanted, found = plain(ranks), {}
    for zero in (2, 3):
        settings = TrainConfig(backend="deepspeed", device="cpu", zero=zero, logits_chunk_tokens=3)
        found[f"zero{zero}"] = gap(run_of(DeepSpeedBackend(two_layers(), settings, ranks), all_steps), wanted)
    return found


def dense() -> Any:
    return two_layers()


def mixture() -> Any:
    settings = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
    return ready(build("qwen3_moe", settings))


def with_adapters(
    config: dict[str, Any], ranks: Ranks | None, start: Path | None = None, base: Callable[[], Any] = dense
) -> Any:
    """A backend that trains adapters; torch's alone where there are no ranks. `start`: a base that stays in files."""
    model = base() if start is None else model_on_meta(str(start), torch.float32)
    twin: MergedTwin = "empty" if config.get("backend") == "fsdp" else "copies" if config.get("zero") == 3 else "shares"
    adapted = Adapted(model, 2, 4.0, (), 7, twin)
    if ranks is None:
        return TorchBackend(model, adapted=adapted)
    return divided(config, model, ranks, adapted)


def adapters(ranks: Ranks, root: Path) -> dict[str, Any]:
    found = adapters_on_fsdp(ranks, saved(dense, root / "base", ranks)) if FSDP else {}
    configs = {"fsdp": FSDP} if FSDP else {f"zero{zero}": {"zero": zero} for zero in (0, 1)}
    return found | learned(dense, configs, ranks, root)


def adapters_of_experts(ranks: Ranks, root: Path) -> dict[str, Any]:
    """On the experts of a mixture too, whose weights stay in files before; then with experts that were recorded."""
    if FSDP:
        configs = {"recomputed": {**FSDP, "gradient_checkpointing": True}}
    else:
        configs = {f"zero{zero}": {"zero": zero} for zero in (2, 3)}
    found = learned(mixture, configs, ranks, root)
    if FSDP:
        wanted = once(ranks, lambda: with_routes(begun(with_adapters({}, None, base=mixture))))
        found["routes"] = routes_apart(with_routes(begun(with_adapters(FSDP, ranks, base=mixture))), wanted)
    return found


def saved(base: Callable[[], Any], folder: Path, ranks: Ranks) -> Path:
    save(base(), folder)  # transformers writes on rank 0 alone
    ranks.barrier()
    return folder


def learned(
    base: Callable[[], Any], configs: dict[str, dict[str, Any]], ranks: Ranks, root: Path
) -> dict[str, dict[str, float]]:
    """Adapters after all steps against torch alone; and a resumed run against an unbroken one."""

    def compute() -> tuple[Run, dict[str, torch.Tensor]]:
        alone = with_adapters({}, None, base=base)
        before = weights(alone)
        return run_of(alone, all_steps), before

    wanted, before = once(ranks, compute)
    found = {}
    start = saved(base, root / "base", ranks) if FSDP else None
    for name, config in configs.items():
        folder = root / name
        backend = begun(with_adapters(config, ranks, start, base))
        is_base = backend.reference is backend.adapted
        seen = steps(backend, 0, SAVED_AT)
        folder.mkdir(parents=True, exist_ok=True)
        ranks.barrier()
        backend.save(folder, save)
        ranks.barrier()
        merged = distance(weights(backend), read_back(folder))
        seen += steps(backend, SAVED_AT, NUM_STEPS)
        again = with_adapters(config, ranks, base=base)  # its base is not the same object, but has the same bits
        again.load(folder)
        steps(again, SAVED_AT, NUM_STEPS)
        found[name] = {
            **gap((seen, weights(backend)), wanted),
            "saved": merged,
            "resumed": distance(weights(again), weights(backend)),
            "base": float(is_base and again.reference is again.adapted),
            "moved": distance(weights(backend), before),
        }
    return found


def adapters_on_fsdp(ranks: Ranks, start: Path) -> dict[str, Any]:
    """A critic of its own begins as the merged policy, and a second refresh makes the reference a model of its own."""

    def taught(backend: Backend) -> tuple[Run, dict[str, Any]]:
        metrics = steps(begun(backend), 0, SAVED_AT)
        for _ in range(2):
            backend.refresh_reference(0.5)
            metrics += steps(backend, SAVED_AT, NUM_STEPS)
        backend.start_critic(False, CRITIC, NUM_STEPS)
        return (metrics, weights(backend)), critic_weights(backend)

    wanted, critic_alone = once(ranks, lambda: taught(with_adapters({}, None)))
    backend = with_adapters(FSDP, ranks, start)
    run, critic = taught(backend)
    assert backend.whole_model() is not backend.adapted.twin
    return {"refreshed": {**gap(run, wanted), "critic": distance(critic, critic_alone)}}


def read_back(folder: Path) -> dict[str, torch.Tensor]:
    return {n: p.detach() for n, p in load_model(str(folder / "model")).named_parameters()}


def sequences(ranks: Ranks, root: Path) -> dict[str, Any]:
    """Both ranks hold each sequence together; what is saved knows nothing of that."""
    sharing = sharing_sequences(ranks, 2)
    assert sharing.pieces is not None
    wanted, found = plain(ranks), {}
    configs = {"fsdp": FSDP} if FSDP else {f"zero{zero}": {"zero": zero} for zero in (1, 3)}
    for name, config in configs.items():
        model = two_layers()
        sharing.pieces.enable(model)
        backend = begun(divided(config, model, sharing))
        backend.compute(sharing.pieces.prove)
        seen = steps(backend, 0, NUM_STEPS)
        folder = root / f"sequence {name}"
        folder.mkdir(parents=True, exist_ok=True)
        ranks.barrier()
        backend.save(folder, save)
        ranks.barrier()
        found[name] = {
            **gap((seen, weights(backend)), wanted),
            "said": float("verizero" in (folder / "model" / "config.json").read_text()),
        }
    return found


def episodes(ranks: Ranks, root: Path) -> dict[str, Any]:
    """Episodes of several rows, what was observed in the loss; and both ranks holding each row together."""
    parts = parts_of("grpo", kl_coef=0.1, num_minibatches=1)

    def taught(backend: Backend) -> list[dict[str, float]]:
        terms = [settings_of(parts, TOKENS, step=s, observation_coef=0.5) for s in range(NUM_STEPS)]
        return [update(backend, parts, (forked if s % 2 else episodes_of)(seed=s), terms[s]) for s in range(NUM_STEPS)]

    wanted = once(ranks, lambda: run_of(TorchBackend(two_layers()), taught))
    sharing = sharing_sequences(ranks, 2)
    assert sharing.pieces is not None
    found = {}
    for zero, together in ((1, False), (3, True)) if not FSDP else ((0, False), (0, True)):
        model = two_layers()
        if together:
            sharing.pieces.enable(model)
        backend = divided(FSDP or {"zero": zero}, model, sharing if together else ranks)
        name = f"{'fsdp' if FSDP else f'zero{zero}'}{' together' if together else ''}"
        found[name] = gap(run_of(backend, taught), wanted)
    return found


def with_routes(backend: Backend) -> tuple[torch.Tensor, dict[str, float]]:
    """Log-probs with experts that were recorded in place of the routers', and the metrics of an update by them."""
    ids = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 11, 12]])
    where = torch.ones_like(ids, dtype=torch.bool)
    where[:, 0] = False
    routing = (torch.arange(5 * 2 * 2 * 2).view(2, 5, 2, 2) % 4).to(torch.int16)  # two layers, two experts a token
    logprobs, _ = backend.logprobs(ids, where, 1.0, replay=Replay(routing=routing))
    free, _ = backend.logprobs(ids, where, 1.0)
    assert float((free - logprobs).abs().max().detach()) > 1e-4, "the routes change nothing"
    backend.backward(logprobs.sum() / backend.ranks.size)
    return logprobs.detach(), backend.step()


def routes_apart(
    ours: tuple[torch.Tensor, dict[str, float]], theirs: tuple[torch.Tensor, dict[str, float]]
) -> dict[str, float]:
    """Difference of log-probs and gradient norm."""
    assert ours[1]["routing/changed"] == theirs[1]["routing/changed"] > 0
    norms = abs(ours[1]["grad_norm"] - theirs[1]["grad_norm"])
    return {"weights": 0.0, "metrics": max(float((ours[0] - theirs[0]).abs().max()), norms)}


def experts(ranks: Ranks, root: Path) -> dict[str, Any]:
    """A mixture of experts, and an algorithm whose ratios are by sequence."""

    def compute() -> tuple[Run, tuple[torch.Tensor, dict[str, float]]]:
        alone = TorchBackend(mixture())
        return run_of(alone, all_steps), with_routes(alone)

    wanted, routes = once(ranks, compute)
    backend = divided(FSDP, mixture(), ranks)
    found = {"experts": gap(run_of(backend, all_steps), wanted)}
    found["routes"] = routes_apart(with_routes(backend), routes)
    parts = parts_of("gspo")

    def taught(backend: Backend) -> list[dict[str, float]]:
        terms = [settings_of(parts, TOKENS, step=s) for s in range(NUM_STEPS)]
        return [update(backend, parts, groups_of(seed=s), terms[s]) for s in range(NUM_STEPS)]

    wanted = once(ranks, lambda: run_of(TorchBackend(two_layers()), taught))
    found["gspo"] = gap(run_of(divided(FSDP, two_layers(), ranks), taught), wanted)
    return found


def pairs(ranks: Ranks, root: Path) -> dict[str, Any]:
    """Pairs whose responses share their prompt; one rank has more of them than the other."""
    rows = pairs_of(longer(groups_of(3)))
    at = PreferenceSettings(0, 1.0, TOKENS)

    def taught(backend: Backend) -> list[dict[str, float]]:
        batch = PreferenceBatch(rows, side_logprobs(backend, rows, "reference", at))
        return [preference_update(backend, *load_preference("dpo"), batch, at) for _ in range(NUM_STEPS)]

    wanted = once(ranks, lambda: run_of(TorchBackend(two_layers()), taught))
    assert wanted[0][0]["tree/ratio"] > 1.3
    return {"dpo": gap(run_of(divided(FSDP, two_layers(), ranks), taught), wanted)}


PARTS = {
    "adapters": adapters, "sequences": sequences, "critics": critics, "chunks": chunks, "episodes": episodes,
    "experts": experts, "adapters_of_experts": adapters_of_experts, "pairs": pairs,
}  # fmt: skip


if __name__ == "__main__":
    group = joined()
    answer = {part: PARTS[part](group, Path(sys.argv[1]) / part) for part in sys.argv[2].split(",")}
    leave()
    print("found", json.dumps(answer))
