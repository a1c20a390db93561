"""Read rows of files (JSON lines, JSON, CSV, TSV, Parquet), and of data sets of the hub or in its format.

And values of cells: what is missing, and what objects of numpy, pandas and Arrow are in JSON.
"""

from __future__ import annotations

import csv
import glob
import gzip
import io
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from verizero.pipeline.config.data import FILE_TYPES, HubSource, ending_of
from verizero.pipeline.errors import DataError, boundary
from verizero.pipeline.host.disk import MAX_BITS, json_text, parse_json

csv.field_size_limit(sys.maxsize)  # Python's own is 131,072 characters
ROWS_AT_ONCE = 1000
GZIP = b"\x1f\x8b"
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
PlacedRow = tuple[str, int, dict[str, Any] | DataError]
"""The place of a row ("train.jsonl line 3"), its number from 1, and the row, or the error in reading it."""


def read_file(path: Path, label: str | None = None) -> Iterator[PlacedRow]:
    """Yield the rows of a file, or of all files of a pattern (part-*.jsonl), in order of their names.

    For a row that is no JSON object, yield a DataError. Files that gzip has packed are read as they are.
    Raises: DataError if there is no such file, it has another ending, or it cannot be read at all.
    """
    label = label or str(path)
    if path.is_file():
        return _read_one(path, label)
    several = [Path(name) for name in sorted(glob.glob(str(path), recursive=True)) if Path(name).is_file()]
    if not several:
        raise DataError(f"no file at {path}; give a path from the recipe's folder, or an absolute one")
    rows = (row for file in several for row in _read_one(file, file.name))
    return ((place, number, row) for number, (place, _, row) in enumerate(rows, 1))


def _read_one(path: Path, label: str) -> Iterator[PlacedRow]:
    ending = ending_of(path.name)
    if ending not in FILE_TYPES:
        raise DataError(f"{label}: must end in {', '.join(FILE_TYPES)}, or one of those and .gz, got {path.name!r}")
    if ending == ".parquet":
        return _parquet(path, label)
    if ending in (".csv", ".tsv"):
        return _csv(path, label, "," if ending == ".csv" else "\t")
    return _json(path, label) if ending == ".json" else _json_lines(path, label)


def _open(path: Path) -> gzip.GzipFile | io.BufferedReader:
    """Open a file for reading, and unpack what gzip has packed, whatever its name is."""
    with path.open("rb") as file:
        is_packed = file.read(2) == GZIP
    return gzip.open(path, "rb") if is_packed else path.open("rb")


def read_hub(source: HubSource, base_dir: Path) -> Iterator[PlacedRow]:
    """Yield rows of a hub data set or of the folder `source.id`. Raises: DataError, also without `datasets`."""
    try:
        import datasets
    except ImportError as exc:
        raise DataError(
            f"hub source {source.id!r} needs the datasets package: pip install '.[hub]', "
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
    return ((f"{label} row {i}", i, table_row(row)) for i, row in enumerate(each, 1))


def _json_lines(path: Path, label: str) -> Iterator[PlacedRow]:
    with boundary(DataError, f"{label}: cannot be unpacked"), _open(path) as file:
        for number, line in enumerate(file, 1):
            # A mark of byte order is legal in the first line only.
            text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if text.strip():
                place = f"{label} line {number}"
                yield place, number, _object(text, place)


def _object(text: bytes, place: str) -> dict[str, Any] | DataError:
    try:
        row = parse_json(text.decode())
    except (ValueError, RecursionError) as exc:  # no JSON, no UTF-8, an integer too long for Python, too deep
        return DataError(f"{place}: {_problem(exc, text.strip())}")
    return _checked(row, place, escaped=SURROGATE.search(text) is not None)


def _problem(exc: Exception, text: bytes) -> str:
    """Return why a text is no JSON, and what to do about the most frequent reasons."""
    if isinstance(exc, UnicodeDecodeError):
        return f"not UTF-8 ({exc.reason} at byte {exc.start}); save the file in UTF-8: iconv -f ENCODING -t UTF-8"
    remedy = "every line must be one JSON object"
    if text.startswith(b"["):
        remedy = "a list of objects is in a file whose name ends in .json"
    elif b"\r" in text:
        remedy = "its lines end in a carriage return alone; save it with the line ends of Unix"
    elif text.endswith(b","):
        remedy = "remove the comma after the object"
    elif re.match(rb"\{\s*'", text):
        remedy = "these are quotes of Python; write rows with json.dumps"
    return f"not JSON ({exc}); {remedy}"


def _checked(row: Any, place: str, escaped: bool) -> dict[str, Any] | DataError:
    """Return the row, or the error. `escaped`: it may have escapes of lone surrogates, which no tokenizer takes."""
    if not isinstance(row, dict):
        more = "; a list of objects is in a file whose name ends in .json" if isinstance(row, list) else ""
        return DataError(f"{place}: must be a JSON object, got {type(row).__name__}{more}")
    if escaped:
        try:
            # json.loads accepts a lone surrogate, and only encoding to UTF-8 reveals it.
            json_text(row).encode()
        except UnicodeEncodeError as exc:
            return DataError(f"{place}: holds half of a surrogate pair ({exc.reason}), which is no text")
    return row


def _json(path: Path, label: str) -> Iterator[PlacedRow]:
    with boundary(DataError, f"{label}: cannot be unpacked"), _open(path) as file:
        text = file.read()
    if not text.strip():
        return
    try:
        rows = parse_json(text.removeprefix(b"\xef\xbb\xbf"))
    except UnicodeDecodeError as exc:
        raise DataError(f"{label}: {_problem(exc, text)}") from exc
    except (ValueError, RecursionError) as exc:
        raise DataError(f"{label}: not JSON ({exc}); for one object per line, end its name in .jsonl") from exc
    if not isinstance(rows, list):
        raise DataError(f"{label}: must hold a list of objects, got {type(rows).__name__}")
    escaped = SURROGATE.search(text) is not None
    for number, row in enumerate(rows, 1):
        place = f"{label} row {number}"
        yield place, number, _checked(row, place, escaped)


def _csv(path: Path, label: str, delimiter: str) -> Iterator[PlacedRow]:
    """Yield the rows of a file with a line of names; every value is a text."""
    with boundary(DataError, f"{label}: not a CSV file in UTF-8 that can be read"):
        with io.TextIOWrapper(_open(path), encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, delimiter=delimiter, strict=True)
            for name, count in Counter(reader.fieldnames or ()).items():
                if name.strip() and count > 1:
                    raise DataError(f"{label}: the column {name!r} comes {count} times; give each its own name")
            for number, row in enumerate(reader, 1):
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
                    yield f"{label} row {number}", number, table_row(row)


def plain(value: Any) -> Any:
    """Return a cell as JSON has it: arrays are lists, decimals are numbers, dates are texts; NaN, NaT and NA are None.

    Raises: TypeError, ValueError for what is no text, number, list or object.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return None if value != value else value
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if type(value).__name__ in ("NaTType", "NAType"):
        return None
    if isinstance(value, Decimal):
        return _number(value)
    if isinstance(value, bytes):
        return value.decode()
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is no text, number, list or object")


def cell_value(cell: Any) -> Any:
    """Return a cell as `plain` does; one that is an integer with more digits than Python writes, as their text."""
    value = plain(cell)
    return json_text(value) if isinstance(value, int) and value.bit_length() > MAX_BITS else value


def is_missing(value: Any) -> bool:
    """True for a plain value that is not there: None, an empty list or object, or a text of spaces. 0 and false are."""
    return not value.strip() if isinstance(value, str) else value is None or value in ([], {})


def present(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cells of a row that are there and can be read, as plain values."""
    cells = {}
    for name, cell in row.items():
        try:
            value = cell_value(cell)
        except (TypeError, ValueError):
            continue
        if not is_missing(value):
            cells[name] = value
    return cells


def table_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a table without the keys in its cells whose value is null.

    A table adds them where another row has the key. Cells themselves and the items of lists stay as they are.
    """
    return {name: _without_nulls(cell) for name, cell in row.items()}


def _without_nulls(cell: Any) -> Any:
    if getattr(cell, "ndim", 0):  # an array, which pandas has for a list of Arrow
        cell = cell.tolist()
    if isinstance(cell, Mapping):
        return {key: _without_nulls(item) for key, item in cell.items() if item is not None}
    return [_without_nulls(item) for item in cell] if isinstance(cell, list) else cell


def _number(value: Decimal) -> Any:
    """Return a number of equal value; the digits, where Python has none; None for NaN."""
    if value.is_nan():
        return None
    if value.is_finite() and value == value.to_integral_value():
        return int(value)
    return float(value) if Decimal(repr(float(value))) == value else str(value)
