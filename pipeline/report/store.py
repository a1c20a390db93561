"""The files that a run writes as it goes: metrics.jsonl and rollouts.jsonl, append-only, cut back on resume.

A checkpoint records how long each file was. What a killed run wrote after its last checkpoint is cut off and written
again by the run that goes on, so the files end the same as those of a run never killed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import DataError, RunError

FILES = ("metrics.jsonl", "rollouts.jsonl")


class Store:
    """Appends rows to the files of the run folder `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._files = {name: (folder / name).open("ab") for name in FILES}

    def metrics(self, row: Mapping[str, Any]) -> None:
        """Append one row to metrics.jsonl. Everything that may differ between equal runs stands under "time"."""
        self._append("metrics.jsonl", [row])

    def rollouts(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows to rollouts.jsonl."""
        self._append("rollouts.jsonl", rows)

    def sync(self) -> dict[str, int]:
        """Bytes in each file, once they are on disk."""
        for file in self._files.values():
            os.fsync(file.fileno())
        return {name: file.tell() for name, file in self._files.items()}

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Cut each file back to `lengths` bytes.

        Raises: RunError if a file is shorter than that: lines that the checkpoint counts on are gone. None is cut then.
        """
        for name, file in self._files.items():
            want, have = lengths.get(name, 0), file.seek(0, os.SEEK_END)
            if have < want:
                raise RunError(
                    f"{self.folder / name} has {have} bytes, the checkpoint counts on {want}; restore the file, or "
                    "start under another name"
                )
        for name, file in self._files.items():
            file.truncate(lengths.get(name, 0))
            file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def _append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        lines = [json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":")) for row in rows]
        if lines:
            self._files[name].write(("\n".join(lines) + "\n").encode("utf-8", "surrogatepass"))
            self._files[name].flush()


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file; a torn last line (a run that was killed) is left out; [] where there is no file.

    Raises: DataError naming a line before the last that is no row: the file was damaged by something else than a kill.
    """
    if not path.is_file():
        return []
    *lines, last = path.read_bytes().split(b"\n")  # what stands behind the last newline is whole only by chance
    rows = [(number, _row(line)) for number, line in enumerate(lines, 1) if line.strip()]
    for number, row in rows:
        if row is None:
            raise DataError(f"line {number} of {path} is not a JSON object; restore the file, or remove that line")
    return [row for _, row in [*rows, (0, _row(last))] if row is not None]


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
