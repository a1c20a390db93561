"""Putting aside what a run wrote and continues without: it is moved to `stale/N` in the run's folder, never deleted."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from verizero.pipeline.files import disk_errors
from verizero.pipeline.report.store import FILES
from verizero.pipeline.train import checkpoint

RECORD, ASIDE = "stages.json", "stale"


def put_aside(folder: Path, end: Path | None, stages: Sequence[str]) -> Path | None:
    """Move everything that was written after checkpoint `end` and what `stages` left (None: all there is).

    Return the folder that has it now, or None if there was nothing. If this is killed at any point and called again, it
    moves the rest.
    """
    offsets = {} if end is None else json.loads((end / "state.json").read_text())["store"]["lengths"]
    # Log lines behind the checkpoint's offset; the store cuts them off when the session opens.
    tails = {name: _tail(folder / name, offsets.get(name, 0)) for name in FILES}
    later = [p for p in checkpoint.numbered(folder / "checkpoints") if end is None or int(p.name) > int(end.name)]
    made = [folder / "stages"] if end is None else [folder / "stages" / name for name in stages]
    if not later and not any(tails.values()):
        return None
    number = 1 + max((int(p.name) for p in (folder / ASIDE).glob("*") if p.name.isdigit()), default=0)
    where = folder / ASIDE / str(number)
    with disk_errors(f"putting earlier results into {where}"):
        (where / "checkpoints").mkdir(parents=True)
        for name, tail in tails.items():
            (where / name).write_bytes(tail)
        if (folder / RECORD).exists():
            shutil.copy2(folder / RECORD, where / RECORD)
        # Renamed, not copied: within one file system it is instant and each is whole or not moved.
        for path in (*made, *(folder / n for n in ("recipe.yaml", "summary.json", "report.html", "model"))):
            if path.exists():
                (where / path.relative_to(folder)).parent.mkdir(exist_ok=True)
                os.rename(path, where / path.relative_to(folder))
        # Checkpoints move last: while one is left, a repeated call still sees something to move.
        for path in reversed(later):
            os.rename(path, where / "checkpoints" / path.name)
    return where


def _tail(path: Path, start: int) -> bytes:
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        file.seek(start)
        return file.read()
