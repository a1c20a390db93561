"""Tasks of the runs of TRL, and the marks of a turn. It loads without torch, which the tests need not wait for."""

from __future__ import annotations

from benchmarks.diagnose.rows import Row, row
from verizero.pipeline.seeds import stream

PAD, USER, ASSISTANT, END = "<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>"
NUM_TRAIN, NUM_HELD_OUT = 700, 120


def rows(seed: int) -> tuple[list[Row], list[Row]]:
    """Return training and held-out sums of two digits; no pair is in both."""
    draw = stream(seed, "diagnose", "trl rows")
    pairs = [(a, b) for a in range(10, 60) for b in range(10, a + 1)]
    draw.shuffle(pairs)
    tasks = [row(a, b) if draw.random() < 0.5 else row(b, a) for a, b in pairs]
    return tasks[NUM_HELD_OUT : NUM_HELD_OUT + NUM_TRAIN], tasks[:NUM_HELD_OUT]


def easy_rows() -> list[Row]:
    """Return tasks that the model solves from the start: a number to repeat."""
    return [{"question": f"{n}=", "answer": str(n)} for n in range(10, 100)]


def hard_rows(seed: int) -> list[Row]:
    """Return products, which the model has seen answered in the right form and nearly always wrong."""
    draw = stream(seed, "diagnose", "trl products")
    pairs = [(draw.randrange(12, 99), draw.randrange(12, 99)) for _ in range(400)]
    return [{"question": f"{a}*{b}=", "answer": str(a * b)} for a, b in pairs]
