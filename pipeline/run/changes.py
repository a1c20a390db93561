"""Changes of verifiers and environments in the middle of a stage, which run.json lists under `changes`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from verizero.pipeline.files import disk_errors, write_atomic
from verizero.pipeline.report.ended import INFO


def changes_of(folder: Path) -> list[dict[str, Any]]:
    """Return the changes that the run in `folder` has had so far: stage, checkpoint, files and why it was allowed."""
    with suppress(OSError, ValueError):
        changes: list[dict[str, Any]] = json.loads((folder / INFO).read_text(encoding="utf-8")).get("changes", [])
        return changes
    return []


def note_change(
    folder: Path, stage: str, end: Path, files: Sequence[str], allowed_by: Literal["resume", "graders_failed"]
) -> None:
    """Write into run.json that the stage continues from checkpoint `end` with changed files."""
    change = {"stage": stage, "checkpoint": end.name, "files": list(files), "allowed_by": allowed_by}
    changes = changes_of(folder)
    if change in changes:  # noted by a start that was killed
        return
    with disk_errors(f"writing into {folder}"):
        info = json.loads((folder / INFO).read_text(encoding="utf-8")) if (folder / INFO).is_file() else {}
        write_atomic(folder / INFO, json.dumps(info | {"changes": [*changes, change]}, indent=1).encode())


def changed_at(folder: Path, start: Path) -> bool:
    """True if files changed at the checkpoint `start`, so that what was graded before it has other rewards."""
    return any(change["checkpoint"] == start.name for change in changes_of(folder))
