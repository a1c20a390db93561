"""Rows as users have them in Python, as a file of a run; and a few rows of any source, to guess columns from."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from verizero.pipeline.config.data import FILE_TYPES, HubSource
from verizero.pipeline.data.files import PlacedRow, read_file, read_hub
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.files import write_atomic
from verizero.pipeline.near import near_path

Data = Any
"""A path, a hub id, a list of rows, a data set of `datasets`, or a frame of `pandas`."""
LOOKED_AT = 50


def place_of(data: Data, folder: Path, name: str, split: str = "train") -> dict[str, Any]:
    """Return the place of rows as a recipe names it, {file: ...} or {hub: ...}; rows in memory become a file there.

    Raises: ConfigError for what holds no rows; DataError for a row that JSON cannot hold.
    """
    if isinstance(data, str | Path):
        return _named(str(data), split)
    if hasattr(data, "to_dict") and hasattr(data, "columns"):  # a frame
        data = data.to_dict("records")
    if isinstance(data, Mapping) and split in data:  # a DatasetDict
        data = data[split]
    if isinstance(data, Mapping) or not isinstance(data, Iterable):
        raise ConfigError(
            f"data is {type(data).__name__}; give a file ({', '.join(FILE_TYPES)}), a hub id, a list of dicts, a "
            "Dataset or a DataFrame"
        )
    lines = []
    for number, row in enumerate(data, 1):
        if not isinstance(row, Mapping):
            raise DataError(f"row {number} of data is {type(row).__name__}; each row is a dict of columns")
        try:
            lines.append(json.dumps(dict(row), ensure_ascii=False, default=_plain, allow_nan=False))
        except (TypeError, ValueError) as exc:
            raise DataError(f"row {number} of data cannot be written as JSON: {exc}") from exc
    if not lines:
        raise DataError("data is empty; give at least one row")
    path = folder / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, ("\n".join(lines) + "\n").encode())
    return {"file": path.name}


def first_rows(place: Mapping[str, Any], folder: Path, most: int = LOOKED_AT) -> list[dict[str, Any]]:
    """Return the first good rows of a place. Raises: DataError."""
    rows: Iterable[PlacedRow]
    if "file" in place:
        rows = read_file(folder / place["file"], str(place["file"]))
    else:
        rows = read_hub(HubSource.model_validate(place["hub"]), folder)
    return [row for _, _, row in itertools.islice(rows, most) if not isinstance(row, DataError)]


def _named(name: str, split: str) -> dict[str, Any]:
    path = Path(name).expanduser()
    if path.is_file():
        return {"file": str(path.absolute())}
    if path.is_dir():
        return {"hub": {"id": str(path.absolute()), "split": split}}
    if name.lower().endswith(FILE_TYPES) or name.startswith((".", "/", "~")):
        raise ConfigError(f"data={name!r}: there is no such file; {near_path(name, 'give its path')}")
    ident, _, config = name.partition(":")
    return {"hub": {"id": ident, "split": split, **({"config": config} if config else {})}}


def _plain(value: Any) -> Any:
    """Return numbers and arrays of numpy, dates and the like as JSON has them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} {value!r:.60}")
