"""JSONL files in the folders of stages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pipeline.report.files import write_atomic
from pipeline.run.session import Session, stage_folder
from pipeline.train.checkpoint import disk_errors


def write_lines(session: Session, path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Write a JSONL file of the stage, whole or not at all; by rank 0."""
    if not session.ranks.is_first:
        return
    with disk_errors(f"writing {path.name}"):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())


def write_left_out(session: Session, stage: str, left_out: Iterable[tuple[Any, str]]) -> None:
    """Write the rows that the stage does not train on, each with the reason, for people."""
    lines = [{"row": row, "why": why} for row, why in left_out]
    write_lines(session, stage_folder(session, stage) / "left_out.jsonl", lines)
