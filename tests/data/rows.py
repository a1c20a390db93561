"""Rows written to files, and read back as prompts, for tests that read them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from verizero.pipeline.config.data import Source
from verizero.pipeline.data.prompts import load_prompts
from verizero.pipeline.types import Prompt


def write_rows(path: Path, rows: Iterable[Any]) -> None:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def jsonl(folder: Path, rows: Iterable[Any], name: str = "rows.jsonl") -> str:
    """The name of a file of JSON lines, written."""
    write_rows(folder / name, rows)
    return name


def parquet(folder: Path, rows: Sequence[Mapping[str, Any]], name: str = "rows.parquet") -> str:
    """The name of a Parquet file, written; a column that a row lacks is null there."""
    columns = dict.fromkeys(key for row in rows for key in row)
    table = pa.table({key: [row.get(key) for row in rows] for key in columns})
    pa.parquet.write_table(table, folder / name)
    return name


def load(folder: Path, **source: object) -> list[Prompt]:
    """The prompts of one source, from that folder."""
    return load_prompts([Source.model_validate(source)], 0, folder)
