"""Parts that look inside: memory against the plan, and waits of the host."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_parts.correct import NO_END, requests_of
from benchmarks.gpu_parts.machine import GIB, ROOT, Machine, groups_of, learner, made, train_once
from benchmarks.gpu_parts.part import Part, Row

NAME = "Qwen/Qwen3-0.6B"
TOP = 15


def memory(machine: Machine) -> Iterator[Row]:
    """Compare the memory of an update and of a generation with the parts that `verizero plan` counts."""
    from verizero.pipeline.config.load import load_recipe

    for dtype in machine.pick(("float32", "bfloat16"), ("float32",)):
        micro, rows, prompt, response = machine.pick((8192, 64, 128, 896), (64, 4, 4, 8))
        overrides = [
            *(f"model.path={NAME}", f"model.dtype={dtype}", "rl.algorithm={name: grpo, kl_coef: 0}"),
            *("rl.reference={schedule: none}", f"rl.prompts_per_step={rows // 4}", "rl.group_size=4"),
            *(f"data.max_prompt_tokens={prompt}", f"rollout.max_response_tokens={response}"),
            *(f"rollout.max_rows={rows}", f"train.micro_batch_tokens={micro}"),
        ]
        planned = planned_gib(load_recipe(ROOT / "configs" / "gsm8k.yaml", overrides))
        measured = measured_gib(machine, dtype, micro, rows, prompt, response)
        pairs = {
            "weights": ("weights",),
            "update": ("weights", "gradients", "optimizer", "masters", "activations", "logits"),
            "engine weights": ("engine weights",),
            "generation, above the weights": ("KV cache", "sampler"),
        }
        for what, parts in pairs.items():
            plan, real = sum(planned.get(p, 0.0) for p in parts), measured[what]
            ratio = None if real is None else real / plan
            yield {"dtype": dtype, "what": what, "plan, GiB": plan, "measured, GiB": real, "measured / plan": ratio}


def planned_gib(config: Any) -> dict[str, float]:
    """Return the plan's parts on one GPU, of its update and of its generation."""
    from verizero.pipeline.plan.devices import DEVICES
    from verizero.pipeline.plan.memory import generating, memory
    from verizero.pipeline.plan.shape import shape_of

    shape = shape_of(config)
    parts = memory(config, shape, 1) | generating(config, shape, 1, DEVICES["h100"])
    return {name: size / GIB for name, size in parts.items()}


def measured_gib(
    machine: Machine, dtype: str, micro: int, rows: int, prompt: int, response: int
) -> dict[str, float | None]:
    """Return the peaks of a model with random weights; None in a dry run, which does the work all the same."""
    from verizero.pipeline.rollout.engine import Sampling
    from verizero.pipeline.rollout.torch_engine import TorchEngine

    def less(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else a - b

    machine.empty()
    model = made(machine.pick(NAME, "small"), getattr(torch, dtype), machine.device)
    weights = machine.allocated_gib()
    backend = learner(model, device=str(machine.device))
    groups = groups_of(rows // 4, 4, prompt, response, model.config.vocab_size)
    for _ in range(2):  # the first makes the optimiser's state
        machine.empty()
        train_once(backend, groups, micro)
    update = machine.peak_gib()
    before = machine.allocated_gib()
    engine = TorchEngine(model, NO_END, 0, rows)
    engine.publish(0)
    held = machine.allocated_gib()
    machine.empty()
    engine.generate(requests_of(rows, prompt, model.config.vocab_size), Sampling(response))
    return {
        "weights": weights,
        "update": update,
        "engine weights": less(held, before),
        "generation, above the weights": less(machine.peak_gib(), held),
    }


def micro_batch(machine: Machine) -> Callable[[], Any]:
    """Return an update of one micro-batch."""
    model = made(machine.pick(NAME, "small"), torch.bfloat16, machine.device)
    backend = learner(model, device=str(machine.device))
    groups = groups_of(1, 4, machine.pick(128, 4), machine.pick(896, 8), model.config.vocab_size)
    return partial(train_once, backend, groups, machine.pick(4096, 64))


def waits(machine: Machine) -> Iterator[Row]:
    """Count by line how often the host waits for the GPU; in a dry run for the make-believe device of the tests."""
    work = micro_batch(machine)
    work()
    if machine.dry:
        yield {"waits": None}
        return
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            work()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    lines: Counter[str] = Counter()
    for w in (w for w in told if "synchronizing CUDA operation" in str(w.message)):
        path = Path(w.filename)
        name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
        lines[f"{name}:{w.lineno}"] += 1
    yield {"waits": sum(lines.values())}
    for place, count in lines.most_common(TOP):
        yield {"line": place, "waits": count}


PARTS = (
    Part(
        "memory",
        "Peaks of an update and of a generation against the parts that `verizero plan` counts.",
        "within 10 % of the plan",
        120,
        memory,
    ),
    Part(
        "waits",
        "How often the host waits for the GPU in a micro-batch, by line; a GPU idles in each wait.",
        "tests/test_fake_device.py holds the budgets",
        60,
        waits,
    ),
)
