"""Read rows of files (JSON lines, JSON, CSV, Parquet), and of data sets of the hub or of a folder in its format."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from verizero.pipeline.config.data import FILE_TYPES, HubSource
from verizero.pipeline.errors import DataError, boundary
from verizero.pipeline.files import json_text, parse_json

ROWS_AT_ONCE = 1000
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
PlacedRow = tuple[str, int, dict[str, Any] | DataError]
"""The place of a row ("train.jsonl line 3"), its number from 1, and the row, or the error in reading it."""


def read_file(path: Path, label: str | None = None) -> Iterator[PlacedRow]:
    """Yield the rows of a file, in order. For a row that is no JSON object, yield a DataError.

    Raises: DataError if there is no such file, it has another ending, or it cannot be read at all.
    """
    label = label or str(path)
    if not path.is_file():
        raise DataError(f"no file at {path}; give a path from the recipe's folder, or an absolute one")
    ending = path.suffix.lower()
    if ending not in FILE_TYPES:
        raise DataError(f"{label}: must end in {', '.join(FILE_TYPES)}, got {path.name!r}")
    if ending == ".parquet":
        return _parquet(path, label)
    if ending == ".csv":
        return _csv(path, label)
    return _json(path, label) if ending == ".json" else _json_lines(path, label)


def read_hub(source: HubSource, base_dir: Path) -> Iterator[PlacedRow]:
    """Yield the rows of a hub data set, or of the local folder `source.id` in `base_dir`.

    Raises: DataError if the `datasets` package is missing, or for whatever it says.
    """
    try:
        import datasets
    except ImportError as exc:
        raise DataError(
            f"hub source {source.id!r} needs the datasets package: pip install 'verizero[hub]', "
            "or download it as JSON lines or Parquet and use file:"
        ) from exc
    label = f"{source.id}:{source.split}"
    folder = base_dir / source.id
    with boundary(DataError, f"hub source {label} cannot be loaded (offline? wrong id, config, split or revision?)"):
        if folder.is_dir() and ((folder / "dataset_info.json").is_file() or (folder / "dataset_dict.json").is_file()):
            saved = datasets.load_from_disk(str(folder))
            rows = saved[source.split] if isinstance(saved, datasets.DatasetDict) else saved
        else:
            where = str(folder) if folder.is_dir() else source.id
            rows = datasets.load_dataset(where, source.config, split=source.split, revision=source.revision)
    # A row of its own takes six times as long to read as one of a batch.
    batches = rows.iter(ROWS_AT_ONCE)
    each = (dict(zip(batch, row, strict=True)) for batch in batches for row in zip(*batch.values(), strict=True))
    return ((f"{label} row {i}", i, row) for i, row in enumerate(each, 1))


def _json_lines(path: Path, label: str) -> Iterator[PlacedRow]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            # A mark of byte order is legal in the first line only.
            text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if text.strip():
                place = f"{label} line {number}"
                yield place, number, _object(text, place)


def _object(text: bytes, place: str) -> dict[str, Any] | DataError:
    try:
        row = parse_json(text)
    except (ValueError, RecursionError) as exc:  # no JSON, no UTF-8, an integer too long for Python, too deep
        return DataError(f"{place}: not JSON ({exc}); every line must be one JSON object")
    return _checked(row, place, escaped=SURROGATE.search(text) is not None)


def _checked(row: Any, place: str, escaped: bool) -> dict[str, Any] | DataError:
    """Return the row, or the error. `escaped`: it may have escapes of lone surrogates, which no tokenizer takes."""
    if not isinstance(row, dict):
        return DataError(f"{place}: must be a JSON object, got {type(row).__name__}")
    if escaped:
        try:
            # json.loads accepts a lone surrogate, and only encoding to UTF-8 reveals it.
            json_text(row).encode()
        except UnicodeEncodeError as exc:
            return DataError(f"{place}: holds half of a surrogate pair ({exc.reason}), which is no text")
    return row


def _json(path: Path, label: str) -> Iterator[PlacedRow]:
    text = path.read_bytes()
    if not text.strip():
        return
    try:
        rows = parse_json(text.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError) as exc:
        raise DataError(f"{label}: not JSON ({exc}); for one object per line, end its name in .jsonl") from exc
    if not isinstance(rows, list):
        raise DataError(f"{label}: must hold a list of objects, got {type(rows).__name__}")
    escaped = SURROGATE.search(text) is not None
    for number, row in enumerate(rows, 1):
        place = f"{label} row {number}"
        yield place, number, _checked(row, place, escaped)


def _csv(path: Path, label: str) -> Iterator[PlacedRow]:
    """The rows of a file with a line of names; every value is a text."""
    with boundary(DataError, f"{label}: not a CSV file in UTF-8 that can be read"):
        with path.open(encoding="utf-8-sig", newline="") as file:
            for number, row in enumerate(csv.DictReader(file, strict=True), 1):
                place = f"{label} row {number}"
                if None in row or None in row.values():
                    yield place, number, DataError(f"{place}: has another number of values than the line of names")
                else:
                    yield place, number, row


def _parquet(path: Path, label: str) -> Iterator[PlacedRow]:
    import pyarrow.parquet

    # Counted over batches, so that places name rows of the whole file.
    number = 0
    with boundary(DataError, f"{label}: not a Parquet file that can be read"):
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield f"{label} row {number}", number, row
