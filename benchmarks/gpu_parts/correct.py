"""Parts that prove on a GPU what the tests prove on the CPU: decoding, log-probs, updates, and ZeRO's stages."""

import copy
import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from benchmarks.gpu_parts.machine import SMALL, Machine, ceilings, check, groups_of, learner, made, train_once
from benchmarks.gpu_parts.part import Part, Row

NO_END = (-1,)
"""End tokens that are none, so that every response has its full length."""
STEPS = 5
LEARNING_RATE, EPS = 1e-2, 1e-4
"""AdamW divides by the gradient's size plus eps. With a large eps, rounding in a gradient near 0 stays small in the
weights: what differs by more is an error."""


def measure_ceilings(machine: Machine) -> Iterator[Row]:
    """Measure a copy of 8 GB and products of 8192 x 8192."""
    most = ceilings(machine.device, machine.pick(4_000_000_000, 1 << 20), machine.pick(8192, 128))
    yield {"what": "copy", "tb_per_s": most.bytes_per_s / 1e12}
    for dtype, rate in most.flops.items():
        yield {"what": f"product, {str(dtype).removeprefix('torch.')}", "tflops": rate / 1e12}


def requests_of(rows: int, prompt: int, vocab: int, group: int = 4) -> list[Any]:
    """Return requests for `rows` responses, `group` to each prompt; prompts have half to all of `prompt` tokens."""
    from verizero.pipeline.rollout.engine import Request

    draw = random.Random(1)
    return [
        Request(
            tuple(draw.choices(range(2, vocab), k=draw.randint(max(1, prompt // 2), prompt))),
            tuple(range(1000 * i, 1000 * i + group)),
        )
        for i in range(max(1, rows // group))
    ]


def decode_as_cpu(machine: Machine) -> Iterator[Row]:
    """Compare the embedded engine on the GPU with the CPU: the same weights and seeds, greedy and sampled."""
    from verizero.pipeline.rollout.engine import Sampling
    from verizero.pipeline.rollout.torch_engine import TorchEngine

    for name in machine.pick(["small", "Qwen/Qwen2.5-0.5B"], ["small"]):
        on_cpu = made(name, torch.float32, "cpu")
        on_gpu = copy.deepcopy(on_cpu).to(machine.device)
        requests = requests_of(machine.pick(32, 8), 32, on_cpu.config.vocab_size)
        for temperature in (0.0, 1.0):
            answers = []
            for model in (on_cpu, on_gpu):
                engine = TorchEngine(model, NO_END, 0)
                engine.publish(0)
                many = engine.generate(requests, Sampling(machine.pick(48, 8), temperature))
                answers.append([c for some in many for c in some])
            same, gap, tie = agreement(*answers)
            label = f"{name}, {'greedy' if temperature == 0 else 'sampled'}"
            yield check(f"{label}: share of equal tokens", same, at_least=0.99)
            yield check(f"{label}: largest gap of log-probs", gap, at_most=1e-4)
            if temperature == 0:
                yield check(f"{label}: gap where two tokens differ", tie, at_most=1e-3)
        del on_gpu
        machine.empty()


def agreement(ours: list[Any], theirs: list[Any]) -> tuple[float, float, float]:
    """Return the share of tokens before a response first differs, and two gaps of log-probs.

    The first gap is the largest over those tokens. The second is the largest between two tokens that differ first: of
    greedy responses it is small, because two tokens of nearly equal probability were the likeliest.
    """
    same = total = 0
    gap = tie = 0.0
    for a, b in zip(ours, theirs, strict=True):
        pairs = list(zip(a.token_ids, b.token_ids, strict=True))
        equal = next((i for i, (x, y) in enumerate(pairs) if x != y), len(pairs))
        same, total = same + equal, total + len(pairs)
        compared = zip(a.logprobs[:equal], b.logprobs[:equal], strict=True)
        gap = max([gap, *(abs(x - y) for x, y in compared)])
        if equal < len(pairs):
            tie = max(tie, abs(a.logprobs[equal] - b.logprobs[equal]))
    return same / total, gap, tie


def decode_as_trainer(machine: Machine) -> Iterator[Row]:
    """Compare the log-probs that the engine records with those that the trainer computes for the same tokens."""
    from verizero.pipeline.loop.rounds import logprob_gap
    from verizero.pipeline.rollout.engine import Sampling
    from verizero.pipeline.rollout.torch_engine import TorchEngine
    from verizero.pipeline.types import Rollout

    for name in machine.pick(["small", "Qwen/Qwen2.5-0.5B", "Qwen/Qwen3-0.6B"], ["small"]):
        for dtype in (torch.float32, torch.bfloat16):
            model = made(name, dtype, machine.device)
            engine = TorchEngine(model, NO_END, 0)
            engine.publish(0)
            requests = requests_of(machine.pick(32, 4), 32, model.config.vocab_size)
            answers = engine.generate(requests, Sampling(machine.pick(64, 8)))
            rollouts = [
                Rollout(str(i), k, r.prompt_ids, c.token_ids, c.logprobs, "", c.finish_reason, 0)
                for i, (r, some) in enumerate(zip(requests, answers, strict=True))
                for k, c in enumerate(some)
            ]
            gap = logprob_gap(learner(model), rollouts, 1.0)
            label = f"{name}, {str(dtype).removeprefix('torch.')}"
            yield {"what": label, "mean": gap.mean, "p99": gap.p99, "largest": gap.largest, "fast path": engine.is_fast}
            if dtype == torch.float32:
                yield check(f"{label}: largest gap", gap.largest, at_most=1e-4)
            else:
                yield check(f"{label}: mean gap", gap.mean, at_most=0.03)
                yield check(f"{label}: 99th percentile", gap.p99, at_most=0.15)
            del model, engine
            machine.empty()


def update_as_cpu(machine: Machine) -> Iterator[Row]:
    """Compare one update on the GPU with one on the CPU, for every preset of an algorithm, in float32."""
    from verizero.pipeline import registry
    from verizero.pipeline.algorithms.base import load_algorithm

    groups = groups_of(*machine.pick((4, 4, 6, 12), (2, 2, 4, 6)), SMALL["vocab_size"])
    start = made("small", torch.float32, "cpu")
    for name in registry.names("algorithms"):
        if name == "custom":  # it has parts to name, and so no preset
            continue
        parts = load_algorithm(name, {})[1]
        plain = {k: False for k in ("keep_sampling", "keep_routing") if getattr(parts.params, k)}
        results = []
        for device in ("cpu", machine.device):
            model = copy.deepcopy(start).to(device)
            backend = learner(model, LEARNING_RATE, EPS)
            backend.refresh_reference()
            if parts.critic is not None:
                backend.start_critic(parts.critic.shared, backend.policy.config, 100)
            metrics = train_once(backend, groups, 128, name, plain | warm_free(parts))
            results.append((metrics, [p.detach().cpu() for p in model.parameters()]))
        (wanted, before), (metrics, after) = results
        apart = max(abs(metrics[k] - wanted[k]) / max(1.0, abs(wanted[k])) for k in wanted)
        moved = max(float((a - b).abs().max()) for a, b in zip(after, before, strict=True))
        yield check(f"{name}: metrics", apart, at_most=1e-4)
        yield check(f"{name}: weights", moved, at_most=2e-5)


def warm_free(parts: Any) -> dict[str, int]:
    """Return the parameter by which a critic's warm-up is left out, where the algorithm has one."""
    return {"critic_warmup_steps": 0} if parts.critic is not None and parts.critic.warmup_steps else {}


Way = tuple[str, str, dict[str, Any]]
"""A name, the policy's number type, and fields of `train`."""
ZERO: tuple[Way, ...] = (
    *((f"ZeRO {zero}, float32", "float32", {"zero": zero}) for zero in (1, 2, 3)),
    ("ZeRO 3, all on the host", "float32", {"zero": 3, "offload": "all"}),
    *((f"ZeRO {zero}, bfloat16", "bfloat16", {"zero": zero}) for zero in (1, 3)),
)
FSDP: tuple[Way, ...] = (
    ("FSDP, float32", "float32", {}),
    ("FSDP, bfloat16", "bfloat16", {}),
    ("FSDP, bfloat16, recomputed", "bfloat16", {"gradient_checkpointing": True}),
)


def zero_stages(machine: Machine) -> Iterator[Row]:
    """Compare five updates with DeepSpeed at one rank with torch's: every stage, offload, and bfloat16."""
    yield from updates_as_torch(machine, "deepspeed", machine.pick(ZERO, ZERO[:1]))


def fsdp(machine: Machine) -> Iterator[Row]:
    """Compare five updates with FSDP at one rank with torch's."""
    yield from updates_as_torch(machine, "fsdp", machine.pick(FSDP, FSDP[:2]))


def updates_as_torch(machine: Machine, backend: str, ways: Sequence[Way]) -> Iterator[Row]:
    """Compare the weights after five updates with those of torch's backend in float32."""
    groups = [groups_of(2, 4, 6, 12, SMALL["vocab_size"], seed) for seed in range(STEPS)]

    def trained(dtype: str, **train: Any) -> list[torch.Tensor]:
        model = made("small", torch.float32, "cpu").to(device=machine.device, dtype=getattr(torch, dtype))
        backend = learner(model, 1e-3, 1e-6, device=str(machine.device), **train)
        for some in groups:
            train_once(backend, some, 128)
        return [p.detach().float().cpu() for p in backend.whole_model().parameters()]

    wanted = trained("float32")
    for label, dtype, train in ways:
        weights = trained(dtype, backend=backend, **train)
        apart = max(float((a - b).abs().max()) for a, b in zip(weights, wanted, strict=True))
        yield check(f"{label}: weights", apart, at_most=1e-5 if dtype == "float32" else 7e-3)


PARTS = (
    Part(
        "ceilings",
        "The most that the GPU does: a copy, and matrix products.",
        "H100: copy 3.0 TB/s, products 790 TFLOP/s in bfloat16 and 50 to 60 in float32; H200: copy 4.3 TB/s",
        30,
        measure_ceilings,
    ),
    Part(
        "decode = CPU",
        "The embedded engine draws the tokens that it draws on the CPU, from the same weights and seeds, in float32.",
        "log-probs within 1e-4; at least 99 % of the tokens before a response first differs",
        90,
        decode_as_cpu,
    ),
    Part(
        "decode = trainer",
        "The engine's log-probs are the trainer's, for the same tokens, with random weights.",
        "float32 within 1e-4; bfloat16 mean 0.01 to 0.03, 99th percentile below 0.15",
        90,
        decode_as_trainer,
    ),
    Part(
        "update = CPU",
        "One update with each preset of an algorithm gives the metrics and weights that it gives on the CPU.",
        "metrics within 1e-4, weights within 2e-5",
        80,
        update_as_cpu,
    ),
    Part(
        "stages",
        "ZeRO 1 to 3 on one GPU, on the host, and in bfloat16 train as torch alone does.",
        "weights within 1e-5 after five updates; bfloat16 7e-3",
        90,
        zero_stages,
        ("deepspeed",),
    ),
    Part(
        "fsdp",
        "FSDP on one GPU, in float32 and with float32 masters of bfloat16, trains as torch alone does.",
        "weights within 1e-5 after five updates; bfloat16 7e-3",
        80,
        fsdp,
    ),
)
