"""Weights & Biases: the folder of an offline run, and histories that were exported as CSV or JSON.

An offline run is a file `run-ID.wandb` of records in LevelDB's log form: blocks of 32 KiB, in each records of checksum
(4 bytes), length (2), kind (1: whole, 2 to 4: its parts). Source: wandb 0.23, wandb/sdk/internal/datastore.py and
wandb/proto/wandb_internal.proto (`Record`, `HistoryRecord`, `ConfigRecord`).
"""

from __future__ import annotations

import csv
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from verizero.pipeline.diagnosis.logs.logged import (
    MAX_NUMBER_BYTES,
    Logged,
    LoggedRow,
    first_row,
    flat,
    is_middle,
    name_file,
    numbers,
)
from verizero.pipeline.diagnosis.logs.wire import fields_of, text_of
from verizero.pipeline.files import numbered_jsonl, parse_json

BLOCK, HEAD, FILE_HEAD = 32768, 7, 7
WHOLE, FIRST, LAST = 1, 2, 4
HISTORY, CONFIG, RUN, CONFIG_OF_RUN = 2, 5, 17, 4
ITEM, KEY, NESTED, JSON = 1, 1, 2, 16
STEP_NAMES = ("_step", "step", "Step", "train/global_step", "global_step", "trainer/global_step")
OF_PANEL = re.compile(r"^.+ - (.+)$")
"""A column of a chart's export: the run's name, then the number's."""
BOUNDS = ("__MIN", "__MAX")


def is_here(path: Path) -> bool:
    """True if the path is an offline run, or an exported history."""
    if path.is_dir():
        return bool(_runs(path))
    return path.suffix in (".wandb", ".csv") or _is_history(path)


def read(path: Path) -> Logged:
    """Return the history and the configuration of the run or export."""
    logged = Logged()
    for run in _runs(path) if path.is_dir() else [path]:
        name_file(run, logged)
        if run.suffix == ".wandb":
            _read_run(run, logged)
        elif run.suffix == ".csv":
            _read_csv(run, logged)
        else:
            _read_json(run, logged)
    return logged


def _runs(folder: Path) -> list[Path]:
    """Return the offline run in the folder; of several the newest."""
    runs = [f for depth in ("*", "*/*", "*/*/*") for f in folder.glob(f"{depth}.wandb") if not f.is_symlink()]
    return sorted(runs, key=lambda f: f.stat().st_mtime)[-1:]


def _read_run(file: Path, logged: Logged) -> None:
    size = file.stat().st_size
    for number, (place, record) in enumerate(_records(file), 1):
        if is_middle(place, size):
            continue
        try:
            for kind, content in fields_of(record):
                if kind == HISTORY and isinstance(content, bytes):
                    _add_row(str(file), number, _items(content, ITEM), logged)
                elif kind == RUN and isinstance(content, bytes):
                    for inner, config in fields_of(content):
                        if inner == CONFIG_OF_RUN and isinstance(config, bytes):
                            logged.settings |= flat(_items(config, ITEM))
                elif kind == CONFIG and isinstance(content, bytes):
                    logged.settings |= flat(_items(content, ITEM))
        except ValueError:
            logged.skipped.append(f"record {number} of {file.name}, which cannot be read")


def _records(file: Path) -> Iterator[tuple[int, bytes]]:
    """Yield where each record ends, and the record; one that is not whole is left out: the run may be under way."""
    content = file.read_bytes()
    place, parts = FILE_HEAD, b""
    while place + HEAD <= len(content):
        if (left := BLOCK - place % BLOCK) < HEAD:
            place += left
            continue
        size, kind = struct.unpack_from("<HB", content, place + 4)
        if kind == 0 or place + HEAD + size > len(content):
            return
        part = content[place + HEAD : place + HEAD + size]
        place += HEAD + size
        parts = part if kind in (WHOLE, FIRST) else parts + part
        if kind in (WHOLE, LAST):
            yield place, parts


def _items(record: bytes, number: int) -> dict[str, Any]:
    """Return the items of a history or configuration: name, joined by points or slashes, and its value."""
    items: dict[str, Any] = {}
    for field, item in fields_of(record):
        if field != number or not isinstance(item, bytes):
            continue
        names: list[str] = []
        value: Any = None
        for part, content in fields_of(item):
            if part in (KEY, NESTED):
                names.append(text_of(content))
            elif part == JSON:
                value = parse_json(text_of(content))
        items["/".join(n for n in names if n)] = value
    return items


def _read_csv(file: Path, logged: Logged) -> None:
    with file.open(encoding="utf-8-sig", newline="") as lines:
        for number, row in enumerate(csv.DictReader(lines), 2):
            plain = {
                _column(name): value for name, value in row.items() if name and not name.endswith(BOUNDS) and value
            }
            _add_row(str(file), number, plain, logged)


def _column(name: str) -> str:
    match = OF_PANEL.match(name)
    return match[1] if match is not None else name


def _read_json(file: Path, logged: Logged) -> None:
    """Read a history: one object a line, a list of objects, or columns as pandas writes them."""
    if file.suffix == ".jsonl":
        for number, row in numbered_jsonl(file, MAX_NUMBER_BYTES):
            _add_row(str(file), number, row, logged)
        return
    rows: Any = parse_json(file.read_bytes())
    if isinstance(rows, Mapping):
        rows = rows.get("history") or rows.get("data") or _from_columns(rows)
    for number, row in enumerate(rows if isinstance(rows, list) else [], 1):
        if isinstance(row, Mapping):
            _add_row(str(file), number, row, logged)


def _from_columns(tree: Mapping[str, Any]) -> list[dict[str, Any]]:
    columns = {name: column for name, column in tree.items() if isinstance(column, Mapping)}
    places = sorted({p for column in columns.values() for p in column}, key=lambda p: (len(p), p))
    return [{name: column.get(p) for name, column in columns.items()} for p in places]


def _add_row(file: str, number: int, values: Mapping[str, Any], logged: Logged) -> None:
    """Add a row. The trainer's own step is better than W&B's, which counts calls of `log`."""
    row = numbers(flat(values))
    own = [row[name] for name in ("train/global_step", "training/global_step", "trainer/global_step") if name in row]
    steps = own or [row[name] for name in STEP_NAMES if name in row]
    if row:
        logged.rows.append(LoggedRow(file, number, int(steps[0]) if steps else number, row))


def _is_history(file: Path) -> bool:
    """True if the file is JSON whose rows have a step."""
    if file.suffix == ".jsonl":
        row = first_row(file)
        return row is not None and any(name in row for name in STEP_NAMES)
    return file.suffix == ".json"
