"""Rows written to files, and read back as prompts, for tests that read them."""

import json

import pyarrow as pa
import pyarrow.parquet

from verizero.pipeline.config.data import Source
from verizero.pipeline.data.prompts import load_prompts


def write_rows(path, rows):
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def jsonl(folder, rows, name="rows.jsonl"):
    """The name of a file of JSON lines, written."""
    write_rows(folder / name, rows)
    return name


def parquet(folder, rows, name="rows.parquet"):
    """The name of a Parquet file, written; a column that a row lacks is null there."""
    columns = dict.fromkeys(key for row in rows for key in row)
    table = pa.table({key: [row.get(key) for row in rows] for key in columns})
    pa.parquet.write_table(table, folder / name)
    return name


def load(folder, **source):
    """The prompts of one source, from that folder."""
    return load_prompts([Source.model_validate(source)], 0, folder)
