"""The peak of a process that trains on the CPU: its libraries, its tensors, and what is lost between them."""

from __future__ import annotations

from verizero.pipeline.commands.plan.devices import CPU
from verizero.pipeline.commands.plan.estimate import memory_lines
from verizero.pipeline.commands.plan.memory import peaks
from verizero.pipeline.commands.plan.shape import shape_of
from verizero.pipeline.config.machine import for_machine
from verizero.pipeline.config.rl import RlConfig
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.models.cpu.memory import has_tcmalloc

PROCESS = 430 << 20
"""Bytes before the first tensor: `verizero train` on Linux when it has read the data, with torch 2.13 for CPUs."""
LOST = {"glibc": 1.6, "tcmalloc": 0.7}
"""Memory that an allocator keeps beyond tensors that come and go, as a share of these; measured with SmolLM2-135M."""


def plans_on_cpu(config: RunConfig, allocator: str) -> dict[str, dict[str, dict[str, float]]]:
    """Return bytes of one process by RL stage, peak of a step and part; without RL, of the last stage's update.

    allocator: a key of LOST.
    """
    stages = dict(config.sections_of(RlConfig))
    names = list(stages) or [config.stages[-1].name]
    return {n: _peaks(config.of_stage(n).model_copy(update={"rl": stages.get(n)}), allocator) for n in names}


def _peaks(config: RunConfig, allocator: str) -> dict[str, dict[str, float]]:
    config = for_machine(config, 1, "cpu", has_vllm=False)
    if config.train.logits_chunk_tokens == "auto":  # here: all at once
        config = config.model_copy(update={"train": config.train.model_copy(update={"logits_chunk_tokens": None})})
    by_peak = peaks(config, shape_of(config), 1, CPU)
    update = by_peak["update"]
    update["lost"] = LOST[allocator] * (update["activations"] + update["logits"])
    return {name: {"process": float(PROCESS)} | parts for name, parts in by_peak.items()}


def lines_on_cpu(config: RunConfig) -> list[str]:
    """Return the memory that each RL stage takes on the CPU, as lines of text; without RL, the last stage."""
    allocator = allocator_here()
    plans = plans_on_cpu(config, allocator)
    lines: list[str] = []
    for name, plan in plans.items():
        lines += [f"stage {name}"] if len(plans) > 1 else []
        lines += memory_lines(plan, "the process")
    return [*lines, f"lost: what {allocator} keeps between tensors, estimated"]


def allocator_here() -> str:
    """Return the key of LOST for processes that begin as this one did."""
    return "tcmalloc" if has_tcmalloc() else "glibc"
