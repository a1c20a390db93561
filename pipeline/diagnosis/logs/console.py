"""Lines that a trainer prints, as they are pasted into a report: dictionaries of TRL and OpenRLHF, lines of verl."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from verizero.pipeline.diagnosis.logs.logged import Logged, LoggedRow, numbers

DICTIONARY = re.compile(r"\{.*?['\"](?:loss|reward|policy_loss|eval_[^'\"]+_pass1)['\"].*?\}")
OF_ARRAYS = re.compile(r"(?:np\.\w+|tensor)\(([^(),]*)[^()]*\)")
"""A number as numpy or torch writes it."""
NO_NUMBER = re.compile(r"(?<=: )-?(?:nan|inf)\b")
STEP_BEFORE = re.compile(r"[Ss]tep[ :=]+(\d+)")
VERL = re.compile(r"step:(\d+) - (.+)")
SUFFIXES = (".log", ".txt", ".out")
MAX_LINE = 100_000


def is_here(path: Path) -> bool:
    """True if the path is a text with lines of a trainer."""
    return path.is_file() and path.suffix in SUFFIXES and bool(read(path).rows)


def read(path: Path) -> Logged:
    """Return the numbers of each line that has some; steps are counted where the line names none."""
    logged = Logged(files=[str(path)])
    counted = 0
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            row = _of_line(line[:MAX_LINE])
            if row is not None:
                counted += 1
                step, values = row
                logged.rows.append(LoggedRow(str(path), number, counted if step is None else step, values))
    return logged


def _of_line(line: str) -> tuple[int | None, dict[str, float]] | None:
    if (match := VERL.search(line)) is not None:
        pairs = (part.partition(":") for part in match[2].split(" - "))
        values = numbers({name.strip(): OF_ARRAYS.sub(r"\1", value.strip()) for name, _, value in pairs})
        return int(match[1]), values
    if (match := DICTIONARY.search(line)) is None:
        return None
    try:
        tree = ast.literal_eval(NO_NUMBER.sub("None", OF_ARRAYS.sub(r"\1", match[0])))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if not isinstance(tree, dict) or "train_runtime" in tree:
        return None
    step = STEP_BEFORE.search(line[: match.start()])
    return (int(step[1]) if step else None), numbers({str(k): v for k, v in tree.items()})
