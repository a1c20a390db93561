"""A session's calls: the order for each, its result, what is kept to repeat it, and the limits of all together."""

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

_FOLDER_MARK = b"\1scratch\1"
"""Written in place of the session's folder, whose name differs between sessions at level 2."""


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of a whole session. `Limits` are for one call; their `disk_mib` is not used.

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
        """True if the status is "passed"."""
        return self.status == "passed"


@dataclass(frozen=True, slots=True)
class PastCall:
    """A call of a session that has ended: its text, its limits and a digest of its answer."""

    kind: Literal["python", "shell", "write"]
    text: str
    """The cell or shell line; for "write", the path."""
    data: bytes = b""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Base:
    """Files, folder and environment with which the repetition of past calls begins."""

    files: bytes | None = None
    """Packed by the keeper; None for no files."""
    state: bytes = b""

    def state_in(self, scratch: str) -> bytes:
        """Return folder and environment for a session whose folder is `scratch`."""
        return self.state.replace(_FOLDER_MARK, scratch.encode())


def outcome(answer: dict[str, Any], out: bytes, err: bytes, limits: Limits, quota: Quota) -> Outcome:
    """Return how a call has ended; `out` and `err`: what it wrote, cut at its limits."""
    reasons: dict[int, tuple[Status, str]] = {
        frames.CPU: ("cpu_limit", "used up its CPU seconds"),
        frames.WALL: ("timeout", "ran for too long"),
        frames.DISK: ("runtime_error", f"wrote more than {quota.disk_mib} MiB or {quota.files} files"),
        frames.PROCESSES: ("runtime_error", f"had more than {limits.processes} processes"),
        frames.OUTPUT: ("output_limit", f"printed more than {limits.output_kib} KiB"),
    }
    if answer["why"] in reasons:
        return reasons[answer["why"]][0], out, err, reasons[answer["why"]][1]
    if any(end - begin > limits.output_kib << 10 for begin, end in zip(answer["begins"], answer["ends"], strict=True)):
        return "output_limit", out, err, f"printed more than {limits.output_kib} KiB"
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


def order_of(call: PastCall) -> dict[str, Any]:
    """Return the order to do or repeat a call."""
    if call.kind == "write":
        return {"do": "write", "path": call.text}
    return {"do": call.kind, "text": call.text, "wall_s": call.wall_s, "cpu_s": call.cpu_s}


def without_folder_name(data: bytes, scratch: str) -> bytes:
    """Return output, or folder and environment, without the name of the session's own folder."""
    return data.replace(scratch.encode(), _FOLDER_MARK)


def digest_of(status: str, out: bytes, err: bytes, scratch: str) -> str:
    """Return the hash of an answer, without the name of the session's folder: equal answers have equal hashes."""
    parts = (status.encode(), without_folder_name(out, scratch), without_folder_name(err, scratch))
    return hashlib.sha256(b"".join(len(p).to_bytes(8, "little") + p for p in parts)).hexdigest()
