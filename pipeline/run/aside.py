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

STAGES_FILE = "stages.json"
"""Name of the file that has the stages which were started, with their fingerprints."""
STALE_FOLDER = "stale"
"""Name of the folder with what was put aside: a numbered folder for each time."""


def put_aside(folder: Path, end: Path | None, stages: Sequence[str]) -> Path | None:
    """Move to stale/N what was written after checkpoint `end` (None: everything), and the folders of `stages`.

    Return stale/N, or None if there was nothing to move. If this is killed at any point and called again, it moves the
    rest.
    """
    offsets = {} if end is None else json.loads((end / "state.json").read_text())["store"]["lengths"]
    # Log lines behind the checkpoint's offset; the store cuts them off when the session opens.
    tails = {name: _tail(folder / name, offsets.get(name, 0)) for name in FILES}
    later = [
        p for p in checkpoint.checkpoint_folders(folder / "checkpoints") if end is None or int(p.name) > int(end.name)
    ]
    stage_folders = [folder / "stages"] if end is None else [folder / "stages" / name for name in stages]
    if not later and not any(tails.values()):
        return None
    number = 1 + max((int(p.name) for p in (folder / STALE_FOLDER).glob("*") if p.name.isdigit()), default=0)
    target = folder / STALE_FOLDER / str(number)
    with disk_errors(f"putting earlier results into {target}"):
        (target / "checkpoints").mkdir(parents=True)
        for name, tail in tails.items():
            (target / name).write_bytes(tail)
        if (folder / STAGES_FILE).exists():
            shutil.copy2(folder / STAGES_FILE, target / STAGES_FILE)
        # Renamed, not copied: within one file system it is instant and each is whole or not moved.
        for path in (*stage_folders, *(folder / n for n in ("recipe.yaml", "summary.json", "report.html", "model"))):
            if path.exists():
                (target / path.relative_to(folder)).parent.mkdir(exist_ok=True)
                os.rename(path, target / path.relative_to(folder))
        # Checkpoints move last: while one is left, a repeated call still sees something to move.
        for path in reversed(later):
            os.rename(path, target / "checkpoints" / path.name)
    return target


def _tail(path: Path, start: int) -> bytes:
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        file.seek(start)
        return file.read()
