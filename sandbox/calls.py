"""One call of a session: its order, its result, its place in the session's past, and the limits of a session's life."""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass, fields
from typing import Any, Literal

from verizero.sandbox.process import signal_name
from verizero.sandbox.results import Limits, Status
from verizero.sandbox.worker import frames

Outcome = tuple[Status, bytes, bytes, str]
"""Status, output, errors and reason of a call that has ended."""

_ROOT = b"\1scratch\1"
"""Stands for the session's folder, whose name differs between sessions at level 2."""


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of a session in its whole life; `Limits` are of one call, and their `disk_mib` is not used.

    Raises: ValueError naming the number that is not positive.
    """

    calls: int = 1000
    cpu_s: float = 600.0
    disk_mib: int = 16
    files: int = 2048
    idle_s: float = 600.0
    """Seconds after the last call at which the session is folded."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise ValueError(f"Quota.{field.name} must be a positive number, got {value!r}")

    def lowered(self, **asked: float | None) -> Quota:
        """Return this quota, each number lowered to the one asked for. None is raised."""
        kept = {f.name: getattr(self, f.name) for f in fields(self)}
        return Quota(**{k: v if asked.get(k) is None else min(v, asked[k]) for k, v in kept.items()})


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of one call."""

    status: Status
    """The status "passed" means that a cell raised nothing, or that a line's exit code was 0."""
    stdout: str
    stderr: str
    error: str
    """The reason of any other status; empty for "passed"."""
    cpu_s: float
    wall_s: float
    level: int
    interpreter_ended: bool = False
    """True if the interpreter is gone with all of its variables; the next cell has a new one."""

    @property
    def passed(self) -> bool:
        """True if the call ended well."""
        return self.status == "passed"


@dataclass(frozen=True, slots=True)
class Past:
    """One call that a session has had, and a digest of its answer; limits are those that it had."""

    kind: Literal["python", "shell", "write"]
    text: str
    """The cell or line; of a write, the path."""
    data: bytes = b""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Base:
    """Files, folder and environment from which the calls of a session's past are repeated."""

    files: bytes | None = None
    """Packed by the keeper; None for no files."""
    state: bytes = b""

    def state_in(self, scratch: str) -> bytes:
        """Return folder and environment for a session whose folder is `scratch`."""
        return self.state.replace(_ROOT, scratch.encode())


def outcome(answer: dict[str, Any], out: bytes, err: bytes, most: Limits, quota: Quota) -> Outcome:
    """Return how a call has ended; `out` and `err` are what it wrote, as far as it is kept."""
    reasons: dict[int, tuple[Status, str]] = {
        frames.CPU: ("cpu_limit", "used up its CPU seconds"),
        frames.WALL: ("timeout", "ran for too long"),
        frames.DISK: ("runtime_error", f"wrote more than {quota.disk_mib} MiB or {quota.files} files"),
        frames.PROCESSES: ("runtime_error", f"had more than {most.processes} processes"),
        frames.OUTPUT: ("output_limit", f"printed more than {most.output_kib} KiB"),
    }
    if answer["why"] in reasons:
        return reasons[answer["why"]][0], out, err, reasons[answer["why"]][1]
    if any(end - begin > most.output_kib << 10 for begin, end in zip(answer["begins"], answer["ends"], strict=True)):
        return "output_limit", out, err, f"printed more than {most.output_kib} KiB"
    status = answer["status"]
    if status is None:
        if answer["state"] == frames.NO_MEMORY:
            return "memory_limit", out, err, ""
        failed = answer["state"] != frames.FINISHED or answer["code"]
        return ("runtime_error", out, err, f"exit code {answer['code']}") if failed else ("passed", out, err, "")
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return "runtime_error", out, err, f"killed by {signal_name(-code)}"
    return ("runtime_error", out, err, f"exit code {code}") if code else ("passed", out, err, "")


def order_of(past: Past) -> dict[str, Any]:
    """Return the order to do or repeat a call."""
    if past.kind == "write":
        return {"do": "write", "path": past.text}
    return {"do": past.kind, "text": past.text, "wall_s": past.wall_s, "cpu_s": past.cpu_s}


def general(data: bytes, scratch: str) -> bytes:
    """Return output, or folder and environment, without the name of the session's own folder."""
    return data.replace(scratch.encode(), _ROOT)


def digest_of(status: str, out: bytes, err: bytes, scratch: str) -> str:
    """Return a short name of an answer: equal answers of two sessions have equal ones."""
    parts = (status.encode(), general(out, scratch), general(err, scratch))
    return hashlib.sha256(b"".join(len(p).to_bytes(8, "little") + p for p in parts)).hexdigest()
