"""JSONL files in the folders of stages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from verizero.pipeline.files import disk_errors, write_atomic
from verizero.pipeline.run.session import Run


def write_lines(run: Run, path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Write a JSONL file of a stage, whole or not at all. Only rank 0 writes."""
    if not run.ranks.is_first:
        return
    with disk_errors(f"writing {path.name}"):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())


def write_left_out(run: Run, stage: str, left_out: Iterable[tuple[Any, str]]) -> None:
    """Write the rows that a stage does not train on, each with the reason, for people."""
    write_lines(run, run.stage_folder(stage) / "left_out.jsonl", [{"row": row, "why": why} for row, why in left_out])
