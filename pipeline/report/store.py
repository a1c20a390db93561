"""The files that a run writes as it goes: metrics.jsonl and rollouts.jsonl, append-only, cut back on resume.

A checkpoint records how long each file was, and a sum of each line. What a killed run wrote after its last checkpoint
is cut off and written again by the resumed run, so the files end the same as those of a run never killed. A line that
was changed since is named before anything is trained.
"""

from __future__ import annotations

import json
import os
import zlib
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from pathlib import Path

from verizero.pipeline.errors import RunError
from verizero.pipeline.host.disk import disk_errors
from verizero.pipeline.report.row_types import MetricsRow, RolloutRow, to_json

FILES = ("metrics.jsonl", "rollouts.jsonl")


class Store:
    """Appends rows to the files of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._files = {name: (folder / name).open("ab") for name in FILES}
        self._sums = {name: array("I") for name in FILES}

    def metrics(self, row: MetricsRow) -> None:
        """Append one row to metrics.jsonl."""
        self._append("metrics.jsonl", [row])

    def rollouts(self, rows: Iterable[RolloutRow]) -> None:
        """Append rows to rollouts.jsonl."""
        self._append("rollouts.jsonl", rows)

    def sync(self) -> dict[str, int]:
        """Return the bytes in each file, once they are on disk."""
        for name, file in self._files.items():
            self._require_place(name)
            # Every append flushes Python's buffer, so the system has all bytes already.
            with disk_errors(f"writing {self.folder / name}"):
                os.fsync(file.fileno())
        return {name: file.tell() for name, file in self._files.items()}

    def sums(self) -> dict[str, str]:
        """Return the sums of each file's lines as text: four bytes a line, however long it is."""
        return {name: b64encode(sums.tobytes()).decode() for name, sums in self._sums.items()}

    def cut(self, lengths: Mapping[str, int], sums: Mapping[str, str]) -> None:
        """Cut each file back to `lengths` bytes, after its lines were compared with `sums`.

        A file that is not in `sums` is cut without a comparison.

        Raises: RunError if a line was changed, or if a file has fewer bytes than `lengths` says. Then no file is cut.
        """
        # All files are checked before the first cut: a refusal must leave them as they are.
        for name, file in self._files.items():
            want, have = lengths.get(name, 0), file.seek(0, os.SEEK_END)
            own = self._sums[name] = sums_of(self.folder / name, want)
            if name in sums:
                self._compare(name, own, array("I", b64decode(sums[name])))
            if have < want:
                raise RunError(
                    f"{self.folder / name} has {have} bytes, the checkpoint counts on {want}; restore the file, or "
                    "start under another name"
                )
        for name, file in self._files.items():
            file.truncate(lengths.get(name, 0))
            file.seek(0, os.SEEK_END)

    def _compare(self, name: str, own: array[int], wanted: array[int]) -> None:
        for number, (now, before) in enumerate(zip_longest(own, wanted), 1):
            if now != before:
                raise RunError(
                    f"line {number} of {self.folder / name} {'is missing' if now is None else 'was changed'} since it "
                    "was written (its sum differs from the checkpoint's); restore the file from a copy, or start under "
                    "another name, where model.path may be the model/ of the newest checkpoint"
                )

    def close(self) -> None:
        """Close the files."""
        for name, file in self._files.items():
            with disk_errors(f"writing {self.folder / name}"):  # what the disk refused before is tried once more
                file.close()

    def _append(self, name: str, rows: Iterable[MetricsRow] | Iterable[RolloutRow]) -> None:
        # Written with one call after all rows are encoded: a value that is not finite raises before any byte is
        # written.
        texts = (json.dumps(to_json(row), ensure_ascii=False, allow_nan=False, separators=(",", ":")) for row in rows)
        lines = [f"{text}\n".encode("utf-8", "surrogatepass") for text in texts]
        if lines:
            self._require_place(name)
            with disk_errors(f"writing {self.folder / name}"):
                self._files[name].write(b"".join(lines))
                self._files[name].flush()  # a killed process then loses no whole row
            self._sums[name].extend(map(zlib.crc32, lines))

    def _require_place(self, name: str) -> None:
        """Raise RunError if the open file is no longer the one of that name: all that follows would be lost."""
        path = self.folder / name
        if not path.exists() or not os.path.samestat(path.stat(), os.fstat(self._files[name].fileno())):
            what = f"its {name}" if self.folder.exists() else "it"
            raise RunError(
                f"{self.folder}: somebody has deleted or renamed {what} while the run wrote there; give it its name "
                "back, and the same command continues from the last checkpoint; without that it begins a new run"
            )


def sums_of(path: Path, length: int) -> array[int]:
    """Return a sum of each line in the first `length` bytes of a file."""
    sums, left = array("I"), length
    with path.open("rb") as file:
        for line in file:
            if left <= 0:
                break
            sums.append(zlib.crc32(line))
            left -= len(line)
    return sums
