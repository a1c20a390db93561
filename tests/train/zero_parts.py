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

from pipeline.config.sections import OptimizerConfig, TrainConfig
from pipeline.errors import NonFiniteError
from pipeline.models.forward import Replay
from pipeline.models.load import load_model, ready
from pipeline.models.lora import Adapted, Twin
from pipeline.models.unloaded import unloaded
from pipeline.train.backend import Backend
from pipeline.train.critic import ShardedCritic
from pipeline.train.deepspeed_backend import DeepSpeedBackend
from pipeline.train.ranks import Ranks, join, leave, sharing_sequences
from pipeline.train.step import update
from pipeline.train.torch_backend import TorchBackend
from tests.models.families import build
from tests.train.batches import groups_of, parts_of, settings_of, two_layers
from tests.train.episodes import episodes_of
from tests.train.zero_rank import NUM_STEPS, OPTIMIZER, SAVED_AT, distance, divided, resumed, save, steps, weights

PPO: dict[str, Any] = {"num_minibatches": 1, "num_epochs": 1, "bootstrap_truncated": True}
FSDP: dict[str, Any] = {"backend": "fsdp"} if "fsdp" in sys.argv else {}
"""Fields of `train` for FSDP; empty: DeepSpeed is tried."""
CRITIC = OptimizerConfig(learning_rate=3e-3, weight_decay=0.1, max_grad_norm=0.5)


def begun(backend: Backend, shared: bool | None = None) -> Backend:
    backend.start(OPTIMIZER, NUM_STEPS)
    backend.refresh_reference()
    if shared is not None:
        backend.start_critic(shared, CRITIC, NUM_STEPS)
    return backend


def ppo(backend: Backend, first: int, last: int) -> list[dict[str, float]]:
    parts = parts_of("ppo", **PPO)
    return [update(backend, parts, groups_of(seed=s), settings_of(parts, 40, step=s)) for s in range(first, last)]


def critic_weights(backend: Any) -> dict[str, torch.Tensor]:
    critic = backend.critic
    if hasattr(critic, "sharded"):
        every = critic.sharded.gathered()
        pairs = every if isinstance(critic, ShardedCritic) else (pair for block in every for pair in block.items())
        return {n: w.float().clone() for n, w in pairs}
    return {n: p.detach().float().clone() for n, p in (critic.model or critic.head).named_parameters()}


def apart(a: list[dict[str, float]], b: list[dict[str, float]]) -> float:
    """Greatest difference between the metrics of two runs."""
    return max(abs(x[k] - y[k]) for x, y in zip(a, b, strict=True) for k in y)


@functools.cache
def by_torch_alone(shared: bool) -> tuple[list[dict[str, float]], dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Metrics of all steps, the policy's and the critic's weights after them, and the critic's before them."""
    alone = begun(TorchBackend(two_layers()), shared)
    before = critic_weights(alone)
    return ppo(alone, 0, NUM_STEPS), weights(alone), critic_weights(alone), before


def critic(config: dict[str, Any], shared: bool, ranks: Ranks, folder: Path) -> dict[str, float]:
    """Policy and critic against torch alone after all steps; and a resumed run against an unbroken one."""
    wanted, policy_alone, critic_alone, critic_before = by_torch_alone(shared)
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
    for zero, shared in ((0, False), (1, True), (2, False), (3, False), (3, True)):
        name = f"zero{zero} {'shared' if shared else 'own'}"
        found[name] = critic({"zero": zero}, shared, ranks, root / name)
    found["offload own"] = critic({"zero": 3, "offload": "all"}, False, ranks, root / "offload")
    return found


def chunks(ranks: Ranks, root: Path) -> dict[str, Any]:
    """Chunks of three tokens, at every stage."""
    alone = begun(TorchBackend(two_layers()))
    wanted = steps(alone, 0, NUM_STEPS)
    found = {}
    for zero in (0, 2, 3):
        settings = TrainConfig(backend="deepspeed", device="cpu", zero=zero, logits_chunk_tokens=3)
        backend = begun(DeepSpeedBackend(two_layers(), settings, ranks))
        metrics = apart(steps(backend, 0, NUM_STEPS), wanted)
        found[f"zero{zero}"] = {"weights": distance(weights(backend), weights(alone)), "metrics": metrics}
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
    model = base() if start is None else unloaded(str(start), torch.float32)
    twin: Twin = "empty" if config.get("backend") == "fsdp" else "copies" if config.get("zero") == 3 else "shares"
    adapted = Adapted(model, 2, 4.0, (), 7, twin)
    if ranks is None:
        return TorchBackend(model, adapted=adapted)
    return divided(config, model, ranks, adapted)


def adapters(ranks: Ranks, root: Path) -> dict[str, Any]:
    found = adapters_on_fsdp(ranks, saved(dense, root / "base", ranks)) if FSDP else {}
    configs = {"fsdp": FSDP} if FSDP else {f"zero{zero}": {"zero": zero} for zero in (0, 1, 2, 3)}
    return found | learned(dense, configs, ranks, root)


def adapters_of_experts(ranks: Ranks, root: Path) -> dict[str, Any]:
    """On the experts of a mixture too, whose weights stay in files before; then with experts that were recorded."""
    if FSDP:
        configs = {"fsdp": FSDP, "recomputed": {**FSDP, "gradient_checkpointing": True}}
    else:
        configs = {f"zero{zero}": {"zero": zero} for zero in (0, 1, 2, 3)}
    found = learned(mixture, configs, ranks, root)
    if FSDP:
        ends = [begun(with_adapters(c, r, base=mixture)) for c, r in (({}, None), (FSDP, ranks))]
        found["routes"] = {"weights": 0.0, "metrics": routes_apart(*ends)}
    return found


def saved(base: Callable[[], Any], folder: Path, ranks: Ranks) -> Path:
    save(base(), folder)  # transformers writes on rank 0 alone
    ranks.barrier()
    return folder


def learned(
    base: Callable[[], Any], configs: dict[str, dict[str, Any]], ranks: Ranks, root: Path
) -> dict[str, dict[str, float]]:
    """Adapters after all steps against torch alone; and a resumed run against an unbroken one."""
    alone = begun(with_adapters({}, None, base=base))
    wanted = steps(alone, 0, NUM_STEPS)
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
            "weights": distance(weights(backend), weights(alone)),
            "metrics": apart(seen, wanted),
            "saved": merged,
            "resumed": distance(weights(again), weights(backend)),
            "base": float(is_base and again.reference is again.adapted),
            "moved": distance(weights(backend), weights(with_adapters({}, None, base=base))),
        }
    return found


def adapters_on_fsdp(ranks: Ranks, start: Path) -> dict[str, Any]:
    """A critic of its own begins as the merged policy, and a second refresh makes the reference a model of its own."""
    found = {}
    alone, backend = with_adapters({}, None), with_adapters(FSDP, ranks, start)
    seen = []
    for one in (alone, backend):
        begun(one)
        metrics = steps(one, 0, SAVED_AT)
        for _ in range(2):
            one.refresh_reference(0.5)
            metrics += steps(one, SAVED_AT, NUM_STEPS)
        one.start_critic(False, CRITIC, NUM_STEPS)
        seen.append((metrics, critic_weights(one)))
    assert backend.whole_model() is not backend.adapted.twin
    found["refreshed"] = {
        "weights": distance(weights(backend), weights(alone)),
        "metrics": apart(seen[1][0], seen[0][0]),
        "critic": distance(seen[1][1], seen[0][1]),
    }
    return found


def read_back(folder: Path) -> dict[str, torch.Tensor]:
    return {n: p.detach() for n, p in load_model(str(folder / "model")).named_parameters()}


def sequences(ranks: Ranks, root: Path) -> dict[str, Any]:
    """Both ranks hold each sequence together; what is saved knows nothing of that."""
    sharing = sharing_sequences(ranks, 2)
    assert sharing.pieces is not None
    alone, found = begun(TorchBackend(two_layers())), {}
    wanted = steps(alone, 0, NUM_STEPS)
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
            "weights": distance(weights(backend), weights(alone)),
            "metrics": apart(seen, wanted),
            "said": float("verizero" in (folder / "model" / "config.json").read_text()),
        }
    return found


def episodes(ranks: Ranks, root: Path) -> dict[str, Any]:
    """Episodes of several rows, what was observed in the loss; and both ranks holding each row together."""
    parts = parts_of("grpo", kl_coef=0.1, num_minibatches=1)

    def taught(backend: Backend) -> list[dict[str, float]]:
        terms = [settings_of(parts, 40, step=s, observation_coef=0.5) for s in range(NUM_STEPS)]
        return [update(backend, parts, episodes_of(seed=s), terms[s]) for s in range(NUM_STEPS)]

    alone = begun(TorchBackend(two_layers()))
    wanted = taught(alone)
    sharing = sharing_sequences(ranks, 2)
    assert sharing.pieces is not None
    found = {}
    for zero, together in ((1, False), (3, False), (3, True)) if not FSDP else ((0, False), (0, True)):
        model = two_layers()
        if together:
            sharing.pieces.enable(model)
        backend = begun(divided(FSDP or {"zero": zero}, model, sharing if together else ranks))
        metrics = apart(taught(backend), wanted)
        name = f"{'fsdp' if FSDP else f'zero{zero}'}{' together' if together else ''}"
        found[name] = {"weights": distance(weights(backend), weights(alone)), "metrics": metrics}
    return found


def routes_apart(alone: Backend, backend: Backend) -> float:
    """Difference of log-probs and gradient norm with experts that were recorded in place of the routers'."""
    ids = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 11, 12]])
    where = torch.ones_like(ids, dtype=torch.bool)
    where[:, 0] = False
    routing = (torch.arange(5 * 2 * 2 * 2).view(2, 5, 2, 2) % 4).to(torch.int16)  # two layers, two experts a token
    ends = []
    for one in (alone, backend):
        logprobs, _ = one.logprobs(ids, where, 1.0, replay=Replay(routing=routing))
        free, _ = one.logprobs(ids, where, 1.0)
        assert float((free - logprobs).abs().max().detach()) > 1e-4, "the routes change nothing"
        one.backward(logprobs.sum() / one.ranks.size)
        ends.append((logprobs.detach(), one.step()))
    (ours, mine), (theirs, other) = ends
    assert mine["routing/changed"] == other["routing/changed"] > 0
    return max(float((ours - theirs).abs().max()), abs(mine["grad_norm"] - other["grad_norm"]))


def experts(ranks: Ranks, root: Path) -> dict[str, Any]:
    """A mixture of experts, and the algorithms whose ratios are by sequence or whose loss is another."""
    alone = begun(TorchBackend(mixture()))
    wanted = steps(alone, 0, NUM_STEPS)
    backend = begun(divided(FSDP, mixture(), ranks))
    metrics = apart(steps(backend, 0, NUM_STEPS), wanted)
    found = {"experts": {"weights": distance(weights(backend), weights(alone)), "metrics": metrics}}
    found["routes"] = {"weights": 0.0, "metrics": routes_apart(alone, backend)}
    for name in ("gspo", "cispo", "dapo"):
        parts = parts_of(name)

        def taught(backend: Backend, parts: Any = parts) -> list[dict[str, float]]:
            return [update(backend, parts, groups_of(seed=s), settings_of(parts, 40, step=s)) for s in range(NUM_STEPS)]

        alone = begun(TorchBackend(two_layers()))
        wanted = taught(alone)
        backend = begun(divided(FSDP, two_layers(), ranks))
        metrics = apart(taught(backend), wanted)
        found[name] = {"weights": distance(weights(backend), weights(alone)), "metrics": metrics}
    return found


PARTS = {
    "adapters": adapters, "sequences": sequences, "critics": critics, "chunks": chunks, "episodes": episodes,
    "experts": experts, "adapters_of_experts": adapters_of_experts,
}  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    group = join(120)
    answer = {part: PARTS[part](group, Path(sys.argv[1]) / part) for part in sys.argv[2].split(",")}
    leave()
    print("found", json.dumps(answer))
