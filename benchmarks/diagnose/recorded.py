"""Recorded runs: the text files that a reader of a run's folder needs, packed, without weights."""

from __future__ import annotations

import io
import json
import lzma
import tarfile
from pathlib import Path

RECORDED = Path(__file__).parents[2] / "tests" / "diagnosis" / "recorded"
FILES = ("recipe.yaml", "run.json", "summary.json", "stages.json", "metrics.jsonl", "rollouts.jsonl")
"""Files of a run's folder; those of its folder `data` come as well."""
MOST_ROWS = 1200
"""Lines kept of a file of rows."""


def record(folder: Path, path: Path) -> None:
    """Pack the run in `folder`/run into `path`. Equal runs give equal bytes."""
    run = folder / "run"
    files = [run / name for name in FILES] + sorted((run / "data").glob("*.jsonl"))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for file in (f for f in files if f.is_file()):
            content = shortened(file)
            entry = tarfile.TarInfo(str(file.relative_to(run)))
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(packed.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def shortened(file: Path) -> bytes:
    """Return the file's content; numbers of metrics.jsonl in six digits, of other rows the first ones alone."""
    if file.suffix != ".jsonl":
        return file.read_bytes()
    lines = file.read_bytes().splitlines(keepends=True)
    if file.name == "metrics.jsonl":
        rows = [json.loads(line, parse_float=lambda text: float(f"{float(text):.6g}")) for line in lines]
        return b"".join(json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in rows)
    return b"".join(lines[:MOST_ROWS])


def unpack(path: Path, folder: Path) -> Path:
    """Write the files of a recorded run into `folder`, and return it."""
    with lzma.open(path) as file, tarfile.open(fileobj=io.BytesIO(file.read())) as tar:
        tar.extractall(folder, filter="data")
    return folder
