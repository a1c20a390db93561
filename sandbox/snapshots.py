"""The state of a session as bytes: from these files, these calls lead to it again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["python", "shell", "write", "seed"]
_ROOT = b"\1scratch\1"
"""Stands for the session's folder, whose name differs between sessions at level 2."""
_MOST_CELLS, _MOST_TEXT, _MOST_OUTPUT = 32, 16 << 10, 256 << 10
"""Cells that are repeated with one order, their characters, and the bytes of their outputs."""


@dataclass(frozen=True, slots=True)
class Past:
    """One call that a session has had, and a digest of its answer; limits are those that it had."""

    kind: Kind
    text: str
    """The cell or line; of a write, the path; of a seed, nothing."""
    data: bytes = b""
    seed: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    digest: str = ""
    size: int = 0
    """Bytes that it wrote to both outputs."""


@dataclass(frozen=True, slots=True)
class Base:
    """Files, folder and environment from which a session begins, and the seed of its `random`."""

    files: bytes | None = None
    """Packed by the keeper; None for no files."""
    state: bytes = b""
    seed: int = 0

    def state_in(self, scratch: str) -> bytes:
        """Return folder and environment for a session whose folder is `scratch`."""
        return self.state.replace(_ROOT, scratch.encode())


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state of a session. Nothing that the session does later changes it: it is a copy."""

    base: Base
    calls: tuple[Past, ...]
    digest: str
    """A short name of all files after the calls."""
    keeps_interpreter: bool = True


def batches(calls: Sequence[Past], together: bool) -> Iterator[list[Past]]:
    """Yield the calls in order: cells that follow each other `together`, as far as orders and outputs stay small."""
    batch: list[Past] = []
    for past in calls:
        texts, size = sum(len(p.text) for p in [*batch, past]), sum(p.size for p in [*batch, past])
        joins = together and past.kind == "python" and texts <= _MOST_TEXT and size <= _MOST_OUTPUT
        if batch and not (joins and len(batch) < _MOST_CELLS):
            yield batch
            batch = []
        batch.append(past)
        if past.kind != "python":
            yield batch
            batch = []
    if batch:
        yield batch


def general(data: bytes, scratch: str) -> bytes:
    """Return output, or folder and environment, without the name of the session's own folder."""
    return data.replace(scratch.encode(), _ROOT)


def digest_of(status: str, out: bytes, err: bytes, scratch: str) -> str:
    """Return a short name of an answer: equal answers of two sessions have equal ones."""
    parts = (status.encode(), general(out, scratch), general(err, scratch))
    return hashlib.sha256(b"".join(len(p).to_bytes(8, "little") + p for p in parts)).hexdigest()


def seed_of_fork(seed: int, fork: int, number: int) -> int:
    """Return the seed of fork `number` of a session's `fork`-th forking."""
    return int.from_bytes(hashlib.sha256(f"fork {seed} {fork} {number}".encode()).digest()[:7], "little")
