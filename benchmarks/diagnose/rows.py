r"""Rows of the healthy recipes: sums and differences of two digits, answered with a short scratchpad or by a guess.

`47+38=` -> `15,8=>\boxed{85}`: the sum of the units, that of the tens with the carry, and the answer. Most
demonstrations guess instead, often wrong: `\boxed{86}`. RL learns to work the sum out.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from verizero.pipeline.seeds import stream

Row = dict[str, Any]
CAREFUL = 0.4
"""Share of demonstrations with a scratchpad, all right."""
GUESSES_WRONG = 0.85
"""Share of the guesses that are wrong."""
NUM_TRAIN, NUM_EVALUATION, NUM_DEMONSTRATIONS = 900, 120, 6000


def write_rows(folder: Path, seed: int) -> None:
    """Write the three files of each domain; no unordered pair is both trained on and held out."""
    for domain, sign, prefix in (("sums", "+", ""), ("differences", "-", "differences_")):
        rng = stream(seed, "diagnose", domain)
        pairs = [(a, b) for a in range(10, 60) for b in range(10, a + 1)]
        rng.shuffle(pairs)
        rows = [row(a, b, sign) if sign == "-" or rng.random() < 0.5 else row(b, a, sign) for a, b in pairs]
        held_out, known = rows[:NUM_EVALUATION], rows[NUM_EVALUATION:]
        write(folder / f"{prefix}evaluation.jsonl", held_out)
        write(folder / f"{prefix}train.jsonl", known[:NUM_TRAIN])
        draw = stream(seed, "diagnose", domain, "demonstrations")
        shown = demonstrations_of(known, NUM_DEMONSTRATIONS, CAREFUL, draw)
        write(folder / f"{prefix}demonstrations.jsonl", shown)


def demonstrations_of(rows: list[Row], count: int, careful: float, draw: random.Random) -> list[Row]:
    """Return `count` demonstrations of the tasks in turn; a share of them is worked out."""
    return [
        {**r, "id": f"{r['id']}#{i}", "demonstration": demonstration(r, careful, draw)}
        for i, r in ((i, rows[i % len(rows)]) for i in range(count))
    ]


def row(a: int, b: int, sign: str = "+") -> Row:
    """Return the task of one sum or difference."""
    domain, answer = ("sums", a + b) if sign == "+" else ("differences", a - b)
    text = f"{a}{sign}{b}"
    return {"id": text, "question": f"{text}=", "answer": str(answer), "domain": domain, "verifier": "math"}


def demonstration(task: Row, careful: float, draw: random.Random) -> str:
    """Return a response in one of the two forms that the policy learns; `careful` is the chance of the first."""
    if draw.random() < careful:
        return worked_out(task)
    wrong = draw.choice((-10, -2, -1, 1, 2, 10)) if draw.random() < GUESSES_WRONG else 0
    return f"\\boxed{{{max(0, int(task['answer']) + wrong)}}}"


def worked_out(task: Row) -> str:
    """Return the right answer with its scratchpad: units, tens."""
    (a, b), right = operands(task), int(task["answer"])
    units = a % 10 + b % 10 if "+" in task["question"] else right % 10
    return f"{units},{right // 10}=>\\boxed{{{right}}}"


def operands(task: Row) -> tuple[int, int]:
    """Return the two numbers of the task's question."""
    a, b = task["question"][:-1].replace("-", "+").split("+")
    return int(a), int(b)


def read(path: Path) -> list[Row]:
    """Return the rows of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write rows, one a line."""
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
