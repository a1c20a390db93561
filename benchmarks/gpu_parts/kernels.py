"""The part that compares each Triton kernel with its twin of plain torch: numbers, time, memory, share of the bound.

In a dry run Triton interprets the kernels on the CPU, so that nothing but the numbers has a meaning.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.gpu_parts.bound import Ceilings, seconds
from benchmarks.gpu_parts.machine import Machine, check, settings_of
from benchmarks.gpu_parts.part import Part, Row

NAMES = ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen3-0.6B", "Qwen/Qwen2.5-7B")
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
    for name in machine.shapes(*NAMES):
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
)
