"""Rows as users have them in Python, as a file of a run; and a few rows of any source, to guess columns from."""

from __future__ import annotations

import glob
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from verizero.pipeline.config.data import FILE_TYPES, HubSource
from verizero.pipeline.data.source_files import PlacedRow, read_file, read_hub
from verizero.pipeline.data.values import plain, table_row
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.host.disk import json_text, write_atomic
from verizero.pipeline.near import near_path

Data = Any
"""A path, a pattern of several, a hub id, or rows in memory: a list of dicts, a dict of lists, a data set, a frame."""
LOOKED_AT = 50


def place_of(data: Data, folder: Path, name: str, split: str = "train") -> dict[str, Any]:
    """Return the place of rows as a recipe names it, {file: ...} or {hub: ...}; rows in memory become a file there.

    Raises: ConfigError for what holds no rows; DataError for a row that JSON cannot hold.
    """
    if isinstance(data, str | Path):
        return _named(str(data), split)
    lines = [_line(row, number) for number, row in enumerate(_rows(data, split), 1)]
    if not lines:
        raise DataError("data is empty; give at least one row")
    path = folder / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, ("\n".join(lines) + "\n").encode())
    return {"file": path.name}


def first_rows(place: Mapping[str, Any], folder: Path, most: int = LOOKED_AT) -> list[dict[str, Any]]:
    """Return the good ones of the first rows of a place. Raises: DataError, also that of a row if most are bad."""
    rows: Iterable[PlacedRow]
    if "file" in place:
        rows = read_file(folder / place["file"], str(place["file"]))
    else:
        rows = read_hub(HubSource.model_validate(place["hub"]), folder)
    read = [row for _, _, row in itertools.islice(rows, most)]
    good = [row for row in read if not isinstance(row, DataError)]
    if len(good) < len(read) / 2:
        raise next(row for row in read if isinstance(row, DataError))
    return good


def _named(name: str, split: str) -> dict[str, Any]:
    path = Path(name).expanduser()
    if path.is_file() or (glob.has_magic(name) and glob.glob(str(path), recursive=True)):
        return {"file": str(path.absolute())}
    if path.is_dir():
        return {"hub": {"id": str(path.absolute()), "split": split}}
    ident, _, config = name.partition(":")
    # A hub id has no ending of letters: one is that of a file, whose name may be mistyped.
    if glob.has_magic(name) or name.startswith((".", "/", "~")) or (path.suffix[1:].isalpha() and not config):
        otherwise = f"give its path, or {name + ':default'!r} for a data set of the hub"
        raise ConfigError(f"data={name!r}: there is no such file; {near_path(name, otherwise)}")
    return {"hub": {"id": ident, "split": split, **({"config": config} if config else {})}}


def _rows(data: Any, split: str) -> Iterable[Any]:
    """Return the rows of what holds some in memory. Raises: ConfigError."""
    if isinstance(data, Mapping) and split in data:  # a DatasetDict
        data = data[split]
    names = getattr(data, "column_names", getattr(data, "columns", None))
    names = () if names is None or isinstance(data, Mapping) else names
    if twice := [name for name, count in Counter(map(str, names)).items() if count > 1]:
        raise ConfigError(f"data has the column {twice[0]!r} twice; give each its own name")
    if isinstance(data, Mapping) and data and all(_is_column(column) for column in data.values()):
        lengths = {name: len(column) for name, column in data.items()}
        if len(set(lengths.values())) > 1:
            raise ConfigError(f"the columns of data have different lengths: {lengths}; give each row all columns")
        return [dict(zip(data, row, strict=True)) for row in zip(*data.values(), strict=True)]
    for method in ("to_pylist", "to_dicts"):  # a table of Arrow, a frame of polars
        if hasattr(data, method):
            return map(table_row, getattr(data, method)())
    if hasattr(data, "to_dict") and hasattr(data, "columns"):  # a frame of pandas
        return map(table_row, data.to_dict("records"))
    if isinstance(data, Mapping) or not isinstance(data, Iterable):
        splits = f" with {', '.join(map(str, data))}" if isinstance(data, Mapping) else ""
        raise ConfigError(
            f"data is {type(data).__name__}{splits}; give a file ({', '.join(FILE_TYPES)}), a hub id, a list of dicts, "
            "a dict of lists, a Dataset, a DataFrame or a table of Arrow"
        )
    return map(table_row, data) if hasattr(data, "features") else data  # of Dataset, of a list


def _is_column(value: Any) -> bool:
    return hasattr(value, "__len__") and not isinstance(value, str | Mapping) and not hasattr(value, "features")


def _line(row: Any, number: int) -> str:
    """Return a row as JSON. Raises: DataError naming its column."""
    if not isinstance(row, Mapping):
        raise DataError(f"row {number} of data is {type(row).__name__}; each row is a dict of columns")
    cells = []
    for name, cell in row.items():
        try:
            text = f"{json_text(str(name))}: {json_text(plain(cell))}"
            text.encode()  # which alone shows half of a surrogate pair
        except (TypeError, ValueError, RecursionError) as exc:
            raise DataError(
                f"row {number} of data: column {name!r} cannot be written as JSON ({exc}); correct the cell, or leave "
                "the column out"
            ) from exc
        cells.append(text)
    return "{" + ", ".join(cells) + "}"
