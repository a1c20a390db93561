"""TensorBoard's event files: scalars, and the texts in which transformers writes the arguments of a run.

A file is a sequence of records: length (8 bytes), its checksum (4), an Event, its checksum (4). Source: TensorBoard,
tensorboard/compat/proto/event.proto and summary.proto; transformers, integrations (`TensorBoardCallback`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from verizero.pipeline.diagnosis.logs.logged import Logged, LoggedRow, flat, is_middle, name_file, numbers
from verizero.pipeline.diagnosis.logs.wire import fields_of, float_of, signed, text_of
from verizero.pipeline.files import parse_json

MARK = "tfevents"
STEP, SUMMARY, VALUE = 2, 5, 1
TAG, SIMPLE, TENSOR = 1, 2, 8
TENSOR_FLOATS, TENSOR_BYTES, TENSOR_CONTENT = 5, 8, 4


def is_here(path: Path) -> bool:
    """True if the path is an event file, or a folder with one at most three folders down."""
    return bool(_files(path))


def read(path: Path) -> Logged:
    """Return the scalars of all event files, and the arguments that transformers wrote as text."""
    logged = Logged()
    for file in _files(path):
        name_file(file, logged)
        size = file.stat().st_size
        for number, (place, event) in enumerate(_events(file), 1):
            if is_middle(place, size):
                continue
            step, values = _scalars(event)
            numbers_of = {name: v for name, v in values.items() if isinstance(v, float)}
            if numbers_of:
                logged.rows.append(LoggedRow(str(file), number, step, numbers(numbers_of)))
            for name, text in values.items():
                if isinstance(text, str) and name.startswith("args/"):
                    logged.settings |= _arguments(text)
    return logged


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if MARK in path.name else []
    return sorted(f for depth in ("*", "*/*", "*/*/*", "*/*/*/*") for f in path.glob(f"{depth}{MARK}*") if f.is_file())


def _events(file: Path) -> Iterator[tuple[int, bytes]]:
    """Yield place and content of each event; a last one that is not whole is left out: the run may be under way."""
    content = file.read_bytes()
    place = 0
    while place + 12 <= len(content):
        (size,) = struct.unpack_from("<Q", content, place)
        if place + 16 + size > len(content):
            return
        yield place, content[place + 12 : place + 12 + size]
        place += 16 + size


def _scalars(event: bytes) -> tuple[int, dict[str, float | str]]:
    """Return the step of an event, and the numbers and texts in it."""
    step, values = 0, dict[str, float | str]()
    try:
        for number, value in fields_of(event):
            if number == STEP:
                step = signed(value)
            elif number == SUMMARY and isinstance(value, bytes):
                for inner, summary in fields_of(value):
                    if inner == VALUE and isinstance(summary, bytes):
                        values |= _value(summary)
    except ValueError:
        return step, values
    return step, values


def _value(summary: bytes) -> dict[str, float | str]:
    tag, value_of = "", cast("float | str | None", None)
    for number, value in fields_of(summary):
        if number == TAG:
            tag = text_of(value)
        elif number == SIMPLE:
            value_of = float_of(value)
        elif number == TENSOR and isinstance(value, bytes):
            value_of = _tensor(value)
    return {} if value_of is None else {tag: value_of}


def _tensor(tensor: bytes) -> float | str | None:
    """Return the one number or text of a tensor."""
    for number, value in fields_of(tensor):
        if isinstance(value, bytes) and number in (TENSOR_FLOATS, TENSOR_CONTENT) and len(value) == 4:
            return float_of(value)
        if number == TENSOR_BYTES:
            return text_of(value)
    return None


def _arguments(text: str) -> dict[str, Any]:
    try:
        tree = parse_json(text.strip().removeprefix("```json").removesuffix("```"))
    except ValueError:
        return {}
    return flat(tree) if isinstance(tree, dict) else {}
