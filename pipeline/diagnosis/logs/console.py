"""Lines that a trainer prints, as they are pasted into a report: dictionaries of TRL and OpenRLHF, lines of verl."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from verizero.pipeline.diagnosis.logs.logged import Logged, LoggedRow, is_middle, name_file, numbers

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
    return path.is_file() and path.suffix in SUFFIXES and next(_rows(path), None) is not None


def read(path: Path) -> Logged:
    """Return the numbers of each line that has some; steps are counted where the line names none."""
    logged = Logged(rows=list(_rows(path)))
    name_file(path, logged)
    return logged


def _rows(path: Path) -> Iterator[LoggedRow]:
    size, place, counted = path.stat().st_size, 0, 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not is_middle(place, size) and (row := _of_line(line[:MAX_LINE].decode(errors="replace"))) is not None:
                counted += 1
                step, values = row
                yield LoggedRow(str(path), number, counted if step is None else step, values)
            place += len(line)


def _of_line(line: str) -> tuple[int | None, dict[str, float]] | None:
    if "np." in line or "tensor(" in line:
        line = OF_ARRAYS.sub(r"\1", line)
    if (match := VERL.search(line)) is not None:
        pairs = (part.partition(":") for part in match[2].split(" - "))
        values = numbers({name.strip(): value for name, _, value in pairs})
        return int(match[1]), values
    if (match := DICTIONARY.search(line)) is None:
        return None
    try:
        tree = ast.literal_eval(NO_NUMBER.sub("None", match[0]))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if not isinstance(tree, dict) or "train_runtime" in tree:
        return None
    step = STEP_BEFORE.search(line[: match.start()])
    return (int(step[1]) if step else None), numbers({str(k): v for k, v in tree.items()})
