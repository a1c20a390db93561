"""Parts that measure speed on a GPU: attention of new shapes, the update, and the cost of determinism."""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.gpu_parts.bound import seconds, weight_bytes
from benchmarks.gpu_parts.machine import CHARACTERS, Machine, groups_of, learner, made, rows_of, train_once
from benchmarks.gpu_parts.part import Part, Row, in_child, log_name

NAMES = ("Qwen/Qwen3-0.6B", "Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-0.5B")
ATTENTION: dict[str, dict[str, str]] = {
    "torch's choice": {},
    "cuDNN last": {"TORCH_CUDNN_SDPA_DEPRIORITIZED": "1"},
    "cuDNN without plans of new shapes": {"TORCH_CUDNN_SDPA_AVOID_RECOMPILE": "1"},
}
"""Environment variables that torch reads once, so each way has a process of its own."""


def attention(machine: Machine) -> Iterator[Row]:
    """Time attention, forward and backward, over shapes that are new, and again when they are known."""
    for label, variables in ATTENTION.items():
        os.environ.update(variables)
        rows, end = in_child(
            partial(new_shapes, machine, label), 60, machine.out / "logs" / log_name(f"attention, {label}")
        )
        for name in variables:
            del os.environ[name]
        yield from rows if end is None else [{"way": label, "ended with": end}]


def new_shapes(machine: Machine, label: str) -> Iterator[Row]:
    """Time the first and the second call for each of 20 shapes of a micro-batch of 0.5B."""
    draw, first, second = random.Random(0), [], []
    for _ in range(machine.pick(20, 3)):
        rows, width = draw.randint(2, 16), draw.randint(*machine.pick((129, 1023), (5, 20)))
        q, k, v = (
            torch.randn(rows, heads, width, 64, device=machine.device, dtype=torch.bfloat16, requires_grad=True)
            for heads in (14, 2, 2)
        )

        def both(q: Any = q, k: Any = k, v: Any = v) -> None:
            F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).sum().backward()

        first.append(1e3 * seconds(both, machine.device, 1, warm=0))
        second.append(1e3 * seconds(both, machine.device, 1, warm=0))
    # The first shapes of a process also pay for what is loaded once.
    yield {"way": label, "new shape, ms": statistics.median(first[1:]), "known shape, ms": statistics.median(second)}


PADDED: dict[str, Any] = {"packing": "off", "compile": "off"}
WAYS: tuple[tuple[str, str, int, dict[str, Any]], ...] = (
    ("padded", "float32", 4096, {}),
    ("padded", "bfloat16", 8192, PADDED),
    ("packed", "bfloat16", 8192, {"compile": "off"}),
    ("packed and compiled", "bfloat16", 8192, {}),
    ("packed and compiled", "bfloat16", 16384, {}),
    ("packed and compiled, all logits at once", "bfloat16", 16384, {"logits_chunk_tokens": None}),
    ("packed and compiled, recomputed", "bfloat16", 16384, {"gradient_checkpointing": True}),
    ("ZeRO 1", "bfloat16", 8192, {"backend": "deepspeed", "zero": 1}),
    ("FSDP", "bfloat16", 8192, {"backend": "fsdp"}),
)
DRY = (WAYS[0], ("packed", "bfloat16", 16384, {"packing": "on"}))
GOALS = {"Qwen/Qwen3-0.6B": 0.35, "Qwen/Qwen2.5-1.5B": 0.35}
"""The share of the measured matrix product that an update in bfloat16 is to reach, by model."""


def update(machine: Machine) -> Iterator[Row]:
    """Time GRPO updates on rows of about 1,000 tokens, by micro-batch and option; a model's goal is above its rows."""
    import importlib.util

    most = machine.ceilings()
    for name in machine.shapes(*NAMES):
        if name in GOALS or machine.dry:
            yield {"model": name, "goal, share of the bound in bfloat16": GOALS.get(name, 0.35)}
        for label, dtype, micro, train in machine.pick(WAYS, DRY):
            if "zero" in train and importlib.util.find_spec("deepspeed") is None:
                continue
            row: Row = {"model": name, "way": f"{dtype}, {label}", "micro-batch tokens": micro}
            try:
                yield row | update_speed(machine, name, getattr(torch, dtype), micro, train, most)
            except torch.cuda.OutOfMemoryError:
                yield {**row, "ended with": "out of memory"}
            machine.empty()


def update_speed(machine: Machine, name: str, dtype: Any, micro: int, train: dict[str, Any], most: Any) -> Row:
    """Return tokens/s, the share of the bound, which is the measured matrix product, and the peak of memory."""
    from verizero.pipeline.models.flops import update_flops
    from verizero.pipeline.train.trees import packs_rows

    model = made(name, dtype, machine.device)
    backend = learner(model, device=str(machine.device), micro_batch_tokens=micro, **train)
    packs = packs_rows(backend)
    num, prompt, response = machine.pick((4, 128, 896), (1, 4, 8))
    groups = groups_of(num, 8, prompt, response, model.config.vocab_size)
    rows = rows_of(groups)
    took = seconds(
        lambda: train_once(backend, groups, micro), machine.device, machine.pick(1 if dtype == torch.float32 else 2, 1)
    )
    tokens = sum(n for n, _ in rows)
    bound = update_flops(model, rows) / most.flops.get(dtype, most.flops[torch.float32])
    return {
        "tokens/s": tokens / took,
        "bound, tokens/s": tokens / bound,
        "share of the bound": bound / took,
        "rows": "packed" if packs else "padded",
        "compiled": backend.compiling is not None and not backend.compiling.fallbacks,
        "peak, GiB": machine.peak_gib(),
    }


def deterministic(machine: Machine) -> Iterator[Row]:
    """Time updates and attention with deterministic kernels and without."""
    from verizero.pipeline.config.sections import TrainConfig
    from verizero.pipeline.train.device import WORKSPACE, switched

    os.environ[WORKSPACE] = ":4096:8"  # cuBLAS reads it at its start, so both ways have it
    most = machine.ceilings()
    for on in (False, True):
        with switched(TrainConfig(deterministic=on), str(machine.device)):
            for name in machine.shapes(NAMES[0]):
                speed = update_speed(machine, name, torch.bfloat16, machine.pick(8192, 64), {}, most)
                yield {"model": name, "deterministic": on, **speed}
                machine.empty()


def against_trl(machine: Machine) -> Iterator[Row]:
    """Time GRPO steps of this project and of TRL, in turns, on equal work."""
    import tempfile
    from pathlib import Path

    from benchmarks.yardstick import Work, both_sides
    from verizero.pipeline.data.tokenizer import character_tokenizer
    from verizero.pipeline.models.load import save_folder

    for name in machine.shapes(NAMES[0], NAMES[2]):
        work = machine.pick(
            Work("full", 1, new_tokens=256, micro_rows=32, device="cuda", dtype="bfloat16"),
            Work("full", 1, prompts=2, group=2, new_tokens=4, micro_rows=4),
        )
        with tempfile.TemporaryDirectory() as folder:
            model = made(name, torch.float32, machine.device)
            save_folder(model, character_tokenizer(CHARACTERS), Path(folder))
            size = weight_bytes(model)
            del model
            machine.empty()
            ours, theirs, _ = both_sides(folder, work, 0)
        yield {"model": name, "weights, bytes": size, "side": "ours", **ours}
        yield {"model": name, "side": "TRL", **theirs, "TRL / ours": theirs["total"] / ours["total"]}


PARTS = (
    Part(
        "attention",
        "Attention of new shapes: cuDNN makes a plan for each, and micro-batches nearly always have a new one.",
        "more than 50 ms for a new shape if cuDNN is taken; published: 0.44 s forward and 0.55 s backward on a B200",
        60,
        attention,
    ),
    Part(
        "update",
        "An update on rows of 1,000 tokens, padded, packed and compiled: tokens/s, and the share of the bound, "
        "which is the measured matrix product.",
        "goal: 35 % of the bound at 0.6B and at 1.5B; estimated on an H100 for padded rows: 0.6B 35 to 48 thousand "
        "tokens/s, 1.5B 15 to 20 (18 to 24 %); float32 6 to 8",
        200,
        update,
    ),
    Part(
        "deterministic",
        "The cost of kernels that give the same bytes each time.",
        "not known; the update is slower by the share that attention's backward takes",
        60,
        deterministic,
    ),
    Part(
        "TRL",
        "A GRPO step against TRL's GRPOTrainer: 32 prompts, 8 responses each of 256 tokens, bfloat16.",
        "estimated: TRL's update takes 0.9 to 1.1 of the time of ours; not known for generating",
        120,
        against_trl,
        ("trl", "datasets"),
    ),
)
