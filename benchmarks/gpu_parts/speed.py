"""Parts that measure speed on a GPU: Triton kernels next to their twins of torch, the update, determinism, and TRL.

In a dry run Triton interprets the kernels on the CPU, so that nothing but their numbers has a meaning.
"""

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.gpu_parts.machine import (
    CHARACTERS,
    Ceilings,
    Machine,
    check,
    groups_of,
    learner,
    made,
    rows_of,
    seconds,
    settings_of,
    train_once,
    weight_bytes,
)
from benchmarks.gpu_parts.part import Part, Row

NAMES = ("Qwen/Qwen3-0.6B", "Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-0.5B")
KERNEL_NAMES = ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen3-0.6B", "Qwen/Qwen2.5-7B")
TEMPERATURE = 0.7
LOGPROB_GAP, GRADIENT_GAP = 2e-3, 2**-6
"""Nats; a share of the greatest number. Gradients are rounded to bfloat16, which has 8 digits, twice."""
CHUNK = 1024
"""Rows of logits that the twin has at once: those of the part `update`."""


def kernels(machine: Machine) -> Iterator[Row]:
    """Compare log-probs with the kernel and with the twin, by model."""
    from verizero.pipeline.models.kernels import VARIABLE

    os.environ[VARIABLE] = "on"
    most = machine.ceilings()
    for name in machine.shapes(*KERNEL_NAMES):
        _, sizes = settings_of(name)
        yield from log_probs(machine, name, sizes, most)
        machine.empty()


def log_probs(machine: Machine, name: str, sizes: dict[str, Any], most: Ceilings) -> Iterator[Row]:
    """Compare forward and backward of log-probs and entropies in bfloat16, by the kernel, in chunks, and at once."""
    from verizero.pipeline.models.forward import head_logprobs
    from verizero.pipeline.models.kernels import VARIABLE
    from verizero.pipeline.rl.logprobs import logprobs_and_entropy

    width, vocab, few = sizes["hidden_size"], sizes["vocab_size"], machine.pick(512, 8)
    head = torch.nn.Linear(width, vocab, bias=False, device=machine.device, dtype=torch.bfloat16)
    torch.nn.init.normal_(head.weight, std=3 * width**-0.5)  # logits of about 3

    def inputs(num: int) -> tuple[Any, Any]:
        hidden = torch.randn(num, width, device=machine.device, dtype=torch.bfloat16, requires_grad=True)
        return hidden, torch.randint(vocab, (num,), device=machine.device)

    def whole(hidden: Any, targets: Any) -> Any:
        return logprobs_and_entropy(head(hidden), targets, TEMPERATURE)

    def in_chunks(hidden: Any, targets: Any) -> Any:
        return head_logprobs(head, hidden, targets, TEMPERATURE, None, CHUNK)

    gaps = compared(head, *inputs(few), in_chunks)
    for what, gap, allowed in zip(("log-probs", "gradients"), gaps, (LOGPROB_GAP, GRADIENT_GAP), strict=True):
        yield check(f"{name}, {what}: gap from float32", gap, at_most=allowed)
    for num in machine.pick((1024, 8192), (8,)):
        hidden, targets = inputs(num)
        # The logits, and the gradients to the hidden states and to the embeddings.
        bound = 3 * 2 * num * width * vocab / most.flops[torch.bfloat16]
        for way, word, compute in (
            ("kernel", "on", in_chunks),
            ("chunks", "off", in_chunks),
            ("at once", "off", whole),
        ):
            os.environ[VARIABLE] = word
            row: Row = {"model": name, "what": "log-probs", "way": way, "tokens": num}
            yield row | spent(machine, partial(pulled, head, hidden, targets, compute), bound)
        os.environ[VARIABLE] = "on"


def pulled(head: Any, hidden: Any, targets: Any, compute: Callable[[Any, Any], Any]) -> tuple[Any, ...]:
    """Return log-probs, entropies and the gradients of a loss that pulls on both."""
    values, entropies = compute(hidden, targets)
    loss = (values * torch.linspace(-1, 1, len(values), device=values.device)).sum() - 0.01 * entropies.sum()
    return (values, entropies, *torch.autograd.grad(loss, (hidden, head.weight)))


def compared(head: Any, hidden: Any, targets: Any, compute: Callable[[Any, Any], Any]) -> tuple[float, float]:
    """Return the greatest gaps, of log-probs and entropies, and of gradients as a share, from all in float32."""
    from verizero.pipeline.rl.logprobs import logprobs_and_entropy

    ours = pulled(head, hidden, targets, compute)

    def exact(hidden: Any, targets: Any) -> Any:
        return logprobs_and_entropy(hidden.float() @ head.weight.float().t(), targets, TEMPERATURE)

    theirs = pulled(head, hidden, targets, exact)
    gaps = [float((a - b).detach().abs().max()) for a, b in zip(ours, theirs, strict=True)]
    greatest = [float(t.detach().abs().max()) for t in theirs]
    return max(gaps[:2]), max(gaps[2] / greatest[2], gaps[3] / greatest[3])


def spent(machine: Machine, work: Callable[[], Any], bound: float) -> Row:
    """Return the time of a call, its share of the bound, and the memory above what was allocated before."""
    machine.empty()
    before = machine.allocated_gib()
    took = seconds(work, machine.device, machine.pick(3, 1))
    peak = machine.peak_gib()
    above = None if peak is None or before is None else peak - before
    return {"ms": 1e3 * took, "bound, ms": 1e3 * bound, "share of the bound": bound / took, "peak above, GiB": above}


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
    from verizero.pipeline.models.compiled import is_compiled
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
        "compiled": is_compiled(backend.model),
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
        "kernels",
        "Triton kernels against their twins of torch: equal numbers, time, memory, and the share of the bound.",
        "log-probs within 2e-3 nats of float32, gradients within 1/64 of the greatest; time not known: "
        "log-probs make the logits twice, so 75 % of the bound at most",
        80,
        kernels,
        ("triton",),
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
