"""The files that a run writes as it goes: metrics.jsonl and rollouts.jsonl, append-only, cut back on resume.

A checkpoint records how long each file was. What a killed run wrote after its last checkpoint is cut off and written
again by the resumed run, so the files end the same as those of a run never killed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from pipeline.errors import RunError
from pipeline.report.rows import MetricsRow, RolloutRow, to_json

FILES = ("metrics.jsonl", "rollouts.jsonl")


class Store:
    """Appends rows to the files of the run folder `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._files = {name: (folder / name).open("ab") for name in FILES}

    def metrics(self, row: MetricsRow) -> None:
        """Append one row to metrics.jsonl."""
        self._append("metrics.jsonl", [row])

    def rollouts(self, rows: Iterable[RolloutRow]) -> None:
        """Append rows to rollouts.jsonl."""
        self._append("rollouts.jsonl", rows)

    def sync(self) -> dict[str, int]:
        """Return the bytes in each file, once they are on disk."""
        for file in self._files.values():
            # Every append flushes Python's buffer, so the system has all bytes already.
            os.fsync(file.fileno())
        return {name: file.tell() for name, file in self._files.items()}

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Cut each file back to `lengths` bytes.

        Raises: RunError if a file is shorter than that: lines that the checkpoint counts on are gone. None is cut then.
        """
        for name, file in self._files.items():
            # All lengths are checked before the first cut: a refusal must leave the files as they are.
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

    def _append(self, name: str, rows: Iterable[MetricsRow] | Iterable[RolloutRow]) -> None:
        # Written with one call after all rows are encoded: a value that is not finite raises before any byte is
        # written.
        lines = [json.dumps(to_json(row), ensure_ascii=False, allow_nan=False, separators=(",", ":")) for row in rows]
        if lines:
            self._files[name].write(("\n".join(lines) + "\n").encode("utf-8", "surrogatepass"))
            self._files[name].flush()  # a killed process then loses no whole row
