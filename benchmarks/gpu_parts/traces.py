"""Parts that look inside: memory against the plan, kernels by time and launches a step, and waits of the host."""

from __future__ import annotations

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
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernelEx")


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
    from verizero.pipeline.commands.plan.devices import DEVICES
    from verizero.pipeline.commands.plan.memory import generating, memory
    from verizero.pipeline.commands.plan.shape import shape_of

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


def traces(machine: Machine) -> Iterator[Row]:
    """Profile one decode step and one micro-batch: launches, and the kernels that take most of the time."""
    for what, work, times in works(machine):
        work()
        kinds = [torch.profiler.ProfilerActivity.CPU]
        kinds += [] if machine.dry else [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=kinds) as profile:
            work()
            machine.wait()
        events = profile.key_averages()
        names = LAUNCHES if not machine.dry else tuple(e.key for e in events if e.key.startswith("aten::"))
        launches = sum(e.count for e in events if e.key in names)
        yield {"what": what, "launches": round(launches / times, 1)}
        field = "self_cpu_time_total" if machine.dry else "self_device_time_total"
        # On a GPU the kernels alone: an operation's own row repeats the time of the kernels that it launched.
        kernels = [e for e in events if machine.dry or e.device_type == torch.autograd.DeviceType.CUDA]
        for event in sorted(kernels, key=lambda e: -getattr(e, field))[:TOP]:
            yield {
                "what": what,
                "kernel": event.key[:100],
                "times": round(event.count / times, 1),
                "us": round(getattr(event, field) / times, 1),
            }


def works(machine: Machine) -> Iterator[tuple[str, Callable[[], Any], int]]:
    """Yield a decode of some steps and an update of some micro-batches, each with their number."""
    from verizero.pipeline.rollout.engine import Sampling
    from verizero.pipeline.rollout.torch_engine import TorchEngine

    model = made(machine.pick(NAME, "small"), torch.bfloat16, machine.device)
    vocab = model.config.vocab_size
    engine = TorchEngine(model, NO_END, 0)
    engine.publish(0)
    requests = requests_of(machine.pick(128, 4), machine.pick(64, 4), vocab)
    steps = 8
    yield f"decode step, {machine.pick(128, 4)} rows", partial(engine.generate, requests, Sampling(steps)), steps
    backend = learner(model, device=str(machine.device))
    groups = groups_of(1, 4, machine.pick(128, 4), machine.pick(896, 8), vocab)
    yield "micro-batch", partial(train_once, backend, groups, machine.pick(4096, 64)), 1


def waits(machine: Machine) -> Iterator[Row]:
    """Count by line how often the host waits for the GPU; in a dry run for the make-believe device of the tests."""
    if machine.dry:
        yield from make_believe_waits(machine.out)
        return
    for what, work, times in works(machine):
        work()
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
        yield {"what": what, "waits": round(sum(lines.values()) / times, 1)}
        for place, count in lines.most_common(TOP):
            yield {"what": what, "line": place, "waits": round(count / times, 1)}


def make_believe_waits(folder: Path) -> Iterator[Row]:
    """Count the waits of a decode step and of a micro-batch on the make-believe device, by file."""
    from tests import fake_device

    fake_device.install()  # in this process alone, which has imported nothing of the project's own so far
    from tests import fake_device_runs as runs
    from verizero.pipeline.rollout.engine import Sampling

    runs.let_recipes_name_it()
    (folder / "parity.py").write_text(runs.VERIFIER)
    with fake_device.Mode():
        for what, seen in (
            ("decode step", runs.decode_waits(folder, Sampling(1), False)),
            ("micro-batch", runs.micro_batch_waits("demo", folder)),
        ):
            yield {"what": what, "waits": sum(seen.values())}
            yield from ({"what": what, "line": name, "waits": count} for name, count in seen.items())


PARTS = (
    Part(
        "memory",
        "Peaks of an update and of a generation against the parts that `verizero plan` counts.",
        "within 10 % of the plan",
        60,
        memory,
    ),
    Part(
        "traces",
        "Launches and the kernels that take most time, of a decode step and of a micro-batch of 0.6B.",
        "520 to 690 launches a decode step",
        60,
        traces,
    ),
    Part(
        "waits",
        "How often the host waits for the GPU, by line; a GPU idles in each wait.",
        "a wait in 8 decode steps; tests/test_fake_device.py holds the budgets",
        60,
        waits,
    ),
)
