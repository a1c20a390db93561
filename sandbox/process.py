"""A worker process as the caller sees it: started, given orders, ended."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verizero.pipeline.errors import IsolationError, limit_fault
from verizero.sandbox import cgroups, work_folders
from verizero.sandbox.results import Limits, Status
from verizero.sandbox.worker import frames
from verizero.sandbox.worker.disk import MAX_ENTRIES
from verizero.sandbox.worker.frames import CGROUP, NAMESPACES

_HERE = os.path.dirname(os.path.abspath(__file__))
_START = "import sys; sys.path.append({here!r}); from worker.boot import boot; boot()"
_START_S = 60.0
_GRACE_S = 30.0
_FIRST_UID = 200_000
_LEAST_FILES, _LEAST_PROCESSES = 128, 64
"""Descriptors and processes below which a worker cannot start, or its programs could fail for want of them."""
_MOSTLY = 4096
"""Bytes that hold the output of most runs, so that one read is enough."""
ERROR_CHARACTERS = 2000
_ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "HOME": "/tmp",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "MALLOC_ARENA_MAX": "2",
    "LD_BIND_NOW": "1",  # else every child would bind the symbols that it calls, and copy the pages they are in
    "PYTHONUTF8": "1",
}


class WorkerDied(Exception):
    """The worker is gone, does not answer, or runs programs wrongly. Another worker can repeat the run."""


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """The end of one process, its streams, and its own records of its tests."""

    exit: frames.Exit
    out: bytes
    err: bytes
    records: list[frames.Record]

    def limit_reached(self, limits: Limits) -> tuple[Status, str] | None:
        """Return the status and the reason of a process that went over a limit; None if it kept to them.

        Raises: WorkerDied when no process could be made.
        """
        end = self.exit
        if end.status == -1:
            raise WorkerDied(f"no process: {os.strerror(end.why)} {tail(self.err)}".strip())
        reasons: dict[int, tuple[Status, str]] = {
            frames.CPU: ("cpu_limit", f"used {end.cpu_s:.1f} CPU seconds of {limits.cpu_s}"),
            frames.WALL: ("timeout", f"ran {end.wall_s:.1f} s of {limits.wall_s}, on {end.cpu_s:.1f} CPU seconds"),
            frames.DISK: ("runtime_error", f"wrote more than {limits.disk_mib} MiB or {MAX_ENTRIES} files"),
            frames.PROCESSES: ("runtime_error", f"had more than {limits.processes} processes"),
            frames.MEMORY: ("memory_limit", f"used more than {limits.memory_mib} MiB"),
            frames.OUTPUT: ("output_limit", f"printed more than {limits.output_kib} KiB"),
        }
        is_long = end.why == frames.ENDED and len(self.out) > limits.output_kib << 10
        return reasons.get(frames.OUTPUT if is_long else end.why)


@dataclass(slots=True, eq=False)
class Worker:
    """A started worker process. Not thread-safe: its holder gives it one order at a time."""

    process: subprocess.Popen[bytes]
    sock: socket.socket
    home: str
    held: int
    notes: dict[str, str]
    files: list[int]
    """Payload, out, err, log: files in memory that the worker has open too."""
    cgroups: dict[str, str] = field(default_factory=dict)
    """Folders of its control groups, by controller."""
    forks: bool = False
    """True if runs may start processes that no process namespace ends together with the worker."""
    payload_bytes: int = 0
    has_errors: bool = True
    """True if something was written to stderr since it was last emptied."""
    patience_s: float = 0.0
    level: int = 0
    stands: dict[str, bool] = field(default_factory=dict)
    tried: dict[str, bool] = field(default_factory=dict)
    """The walls that held around a program of this keeper, in a trial of each; empty for other workers."""
    runs: int = 0
    """Processes that it has run since it was last known to run programs rightly."""
    is_fit: bool = True
    """False if it has run a known program wrongly, and must run no other."""

    def execute(self, order: frames.Order, payload: bytes) -> ProcessResult:
        """Return the result of one order. Raises: WorkerDied."""
        payload_fd, out_fd, err_fd, log_fd = self.files
        self.runs += 1
        try:
            for fd in (out_fd, err_fd, log_fd) if self.has_errors else (out_fd, log_fd):
                os.ftruncate(fd, 0)
            _write(payload_fd, payload)
            if len(payload) < self.payload_bytes:
                os.ftruncate(payload_fd, len(payload))
            self.payload_bytes = len(payload)
            self.sock.send(order.pack())
            exit = frames.Exit.unpack(self._answer(order.wall_s * 20 + order.cpu_s + _GRACE_S))
            most = (order.output_kib << 10) * 2 + 1
            log = _read(log_fd, most + order.tests * frames.RECORD_BYTES)
            err = _read(err_fd, most)
            self.has_errors = bool(err)
            return ProcessResult(exit, _read(out_fd, most), err, frames.read_records(log, order.tests))
        except OSError as exc:
            raise WorkerDied(str(exc)) from exc

    def _answer(self, timeout_s: float) -> bytes:
        if timeout_s != self.patience_s:
            # The kernel keeps the time: a timeout of Python's socket would cost two more calls for each packet.
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", math.ceil(timeout_s), 0))
            self.patience_s = timeout_s
        packet = self.sock.recv(4096)
        if not packet:
            raise WorkerDied(f"worker {self.process.pid} ended: {self.last_words()}")
        return packet

    def last_words(self) -> str:
        """Return the tail of what the worker or its run wrote to stderr; nothing once the worker is closed."""
        if not (files := self.files):
            return ""
        with contextlib.suppress(OSError):
            size = os.fstat(files[2]).st_size
            return os.pread(files[2], 2048, max(0, size - 2048)).decode(errors="replace")
        return ""

    def let_go(self) -> None:
        """Close our ends, in a forked copy of the caller. The worker still belongs to the original."""
        self.sock.close()
        for fd in (*self.files, self.held):
            os.close(fd)
        self.files, self.held = [], -1

    def close(self) -> None:
        """End the worker and remove its folder."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()
        try:
            self.process.wait(2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.forks:
            _end_session(self.process.pid)
        # Taken and emptied in one step, because two threads may close at once.
        (files, self.files), (held, self.held) = (self.files, []), (self.held, -1)
        for fd in files:
            os.close(fd)
        if held >= 0:
            work_folders.remove(self.home, held)
            cgroups.remove(self.cgroups)


def _end_session(leader: int) -> None:
    """Kill the processes that a worker's runs have left in its session.

    The signal goes to whole groups, because no fork can escape it there. The session is read again until it has no new
    group: a flood of processes starts others while it is read.
    """
    proc, killed, before = Path("/proc"), set[int](), -1
    while len(killed) > before and proc.is_dir():
        before = len(killed)
        for entry in (e for e in proc.iterdir() if e.name.isdecimal()):
            with contextlib.suppress(OSError):
                _, _, group, session, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(session) == leader and int(group) not in killed:
                    killed.add(int(group))
                    os.killpg(int(group), signal.SIGKILL)


def order(kind: int, most: Limits, tests: int = 1) -> frames.Order:
    """Return the order to run `tests` tests in one process under the limits `most` of one test."""
    return frames.Order(
        kind, most.wall_s, most.cpu_s, most.memory_mib, most.output_kib, most.disk_mib, most.processes, tests
    )


def tail(err: bytes, most: int = ERROR_CHARACTERS) -> str:
    """Return the last `most` characters that a program wrote to stderr."""
    return err[-4 * most :].decode("utf-8", "replace")[-most:].strip()


def signal_name(number: int) -> str:
    """Return the name of a signal, and the number of one that has no name: a real-time signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _write(fd: int, data: bytes) -> None:
    view, at = memoryview(data), 0
    while at < len(view):
        at += os.pwrite(fd, view[at:], at)


def _read(fd: int, most: int) -> bytes:
    data = os.pread(fd, min(_MOSTLY, most), 0)
    return data if len(data) < _MOSTLY else os.pread(fd, min(os.fstat(fd).st_size, most), 0)


def interpreters() -> list[str]:
    """Return the interpreters to try, best first: the one below our virtual environment, ours, the system's."""
    base = getattr(sys, "_base_executable", None)
    candidates = [base, sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"]
    return [p for p in dict.fromkeys(candidates) if p and os.access(p, os.X_OK)]


def start(
    interpreter: str,
    walls: frozenset[str],
    number: int,
    tools: tuple[str, ...] = (),
    sessions: Mapping[str, int] | None = None,
) -> Worker:
    """Start a worker behind these walls, which are not tested yet; with `sessions`, the bounds of all, a keeper.

    A keeper's programs have fixed hashes, so that a session can be repeated with the same outputs.

    Raises: WallRefused naming the wall that this machine refuses; WorkerDied; IsolationError.
    """
    if fault := limit_fault("a worker of the sandbox", _LEAST_FILES, _LEAST_PROCESSES):
        raise IsolationError(fault)
    made: dict[str, str] = {}
    if CGROUP in walls:
        try:
            made = cgroups.make(number)
        except OSError as exc:
            if exc.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):  # of this moment, not of the wall
                raise WorkerDied(f"{interpreter}: {exc}") from exc
            raise WallRefused(CGROUP, exc.strerror or str(exc)) from exc
    with contextlib.ExitStack() as undo:
        undo.callback(cgroups.remove, made)
        try:
            home, held = work_folders.make()
            undo.callback(work_folders.remove, home, held)
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.enter_context(ours)
            ours.settimeout(None)
            with theirs:
                files: list[int] = []
                for name in ("payload", "out", "err", "log"):
                    files.append(os.memfd_create(name, os.MFD_CLOEXEC))
                    undo.callback(os.close, files[-1])
                config = {
                    "walls": sorted(walls), "home": home, "uid": _FIRST_UID + os.getpid() % 30_000 * 64 + number % 64,
                    "tools": tools, "cgroups": made, "host_file": work_folders.canary(home), "host_pid": os.getpid(),
                    "sessions": sessions,
                }  # fmt: skip
                process = _spawn(interpreter, (theirs.fileno(), *files[1:], files[0]), config)
            worker = Worker(process, ours, home, held, {}, files, made, bool(tools) and NAMESPACES not in walls)
            undo.pop_all()
            undo.callback(worker.close)
            hello: dict[str, Any] = json.loads(worker._answer(_START_S))
        except OSError as exc:
            raise WorkerDied(f"{interpreter}: {exc}") from exc
        if "failed" in hello:
            raise WallRefused(hello["failed"], hello["why"])
        worker.notes, worker.tried = hello["notes"] | {"python": hello["python"]}, hello.get("tried", {})
        undo.pop_all()
        return worker


def _spawn(interpreter: str, inherited: tuple[int, ...], config: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    """Start the process of a worker with these descriptors: control, out, err, log, payload. Raises: OSError."""
    code = _START.format(here=_HERE)
    # -I ignores the variable that fixes hashes; the environment is ours alone in either case.
    flags, fixed = (["-I"], {}) if config["sessions"] is None else (["-P", "-s"], {"PYTHONHASHSEED": "0"})
    command = [interpreter, *flags, "-S", "-X", "utf8", "-c", code, ",".join(map(str, inherited)), json.dumps(config)]
    return subprocess.Popen(
        command, pass_fds=inherited, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=inherited[2],
        env=_ENVIRONMENT | fixed, cwd="/", start_new_session=True,
    )  # fmt: skip


class WallRefused(Exception):
    """This machine refuses a wall."""

    def __init__(self, wall: str, why: str) -> None:
        super().__init__(why)
        self.wall = wall
