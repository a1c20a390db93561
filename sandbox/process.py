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
from verizero.sandbox.worker import disk, frames
from verizero.sandbox.worker.frames import CGROUP, NAMESPACES

_HERE = os.path.dirname(os.path.abspath(__file__))
_START = "import sys; sys.path.append({here!r}); from worker.boot import boot; boot()"
_START_S = 60.0
_GRACE_S = 30.0
_FIRST_UID = 200_000
_MIN_FILES, _MIN_PROCESSES = 128, 64
"""Descriptors and processes that a worker needs to start, and its programs to run."""
_SHORT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR)
"""Errors of a machine that has too few descriptors, processes or too little memory now: no fault of a wall."""
_FIRST_READ = 4096
"""Bytes of the first read of an output, which is all of it for most runs."""
ERROR_CHARACTERS = 2000
_ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "HOME": "/tmp",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "MALLOC_ARENA_MAX": "2",
    "LD_BIND_NOW": "1",  # else every child would bind the symbols that it calls, and copy the pages they are in
    "PYTHONUTF8": "1",
    "PYTHONHASHSEED": "0",  # programs that print a set get equal verdicts in equal runs
}


class WorkerDied(Exception):
    """The worker is gone, does not answer, or runs programs wrongly. Another worker can repeat the run."""


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """The end of a process, what it printed, and the records that it wrote about its tests."""

    exit: frames.Exit
    out: bytes
    err: bytes
    records: list[frames.Record]
    program: frames.Exit | None = None
    """The end of a suite's program; the other numbers are then of the process that ran the tests."""

    def of_program(self) -> ProcessResult:
        """Return the end of a suite's program as a result of its own; this one if there is no second process."""
        return self if self.program is None else ProcessResult(self.program, b"", self.err, [])

    def was_killed(self) -> bool:
        """True if the process was killed, and at no limit that the worker knows."""
        return os.WIFSIGNALED(self.exit.status) and os.WTERMSIG(self.exit.status) == signal.SIGKILL

    def limit_reached(self, limits: Limits) -> tuple[Status, str] | None:
        """Return status and reason of a process over a limit, else None. Raises: WorkerDied if there is no process."""
        end = self.exit
        if end.status == -1:
            raise WorkerDied(f"no process: {os.strerror(end.why)} {tail(self.err)}".strip())
        is_long = end.why == frames.ENDED and len(self.out) > limits.output_kib << 10
        return over_limit(frames.OUTPUT if is_long else end.why, end.cpu_s, end.wall_s, limits)


def over_limit(why: int, cpu_s: float, wall_s: float, limits: Limits) -> tuple[Status, str] | None:
    """Return status and reason of what a limit has ended, as `frames` names it; None for any other end."""
    reasons: dict[int, tuple[Status, str]] = {
        frames.CPU: ("cpu_limit", f"used {cpu_s:.1f} CPU seconds of {limits.cpu_s}"),
        frames.WALL: ("timeout", f"ran {wall_s:.1f} s of {limits.wall_s}, on {cpu_s:.1f} CPU seconds"),
        frames.DISK: ("runtime_error", f"wrote more than {limits.disk_mib} MiB or {disk.MAX_ENTRIES} files"),
        frames.PROCESSES: ("runtime_error", f"had more than {limits.processes} processes"),
        frames.MEMORY: ("memory_limit", f"used more than {limits.memory_mib} MiB"),
        frames.OUTPUT: ("output_limit", f"printed more than {limits.output_kib} KiB"),
    }
    return reasons.get(why)


@dataclass(slots=True, eq=False)
class Worker:
    """A started worker process. Not thread-safe: it takes one order at a time."""

    process: subprocess.Popen[bytes]
    sock: socket.socket
    home: str
    lock_fd: int
    """Descriptor of the lock on `home`, -1 once it is closed."""
    notes: dict[str, str]
    files: list[int]
    """Payload, out, err, log: files in memory that the worker has open too."""
    cgroups: dict[str, str] = field(default_factory=dict)
    """Folders of its control groups, by controller."""
    forks: bool = False
    """True if processes of a run may outlive the worker: there is no process namespace to end them."""
    payload_bytes: int = 0
    has_errors: bool = True
    """True if stderr is not empty."""
    answer_timeout_s: float = 0.0
    """Present timeout of `sock`."""
    level: int = 0
    tried: dict[str, bool] = field(default_factory=dict)
    """Wall -> True if it held around a program of this keeper; empty for other workers."""
    runs: int = 0
    """Processes that it has run since its last check (`pool.check`)."""
    is_fit: bool = True
    """False once it has failed a check: then it must run no other program."""

    def execute(self, order: frames.Order, payload: bytes) -> ProcessResult:
        """Return the result of one order. Raises: WorkerDied."""
        payload_fd, out_fd, err_fd, log_fd = self.files
        self.runs += 1
        try:
            for fd in (out_fd, err_fd, log_fd) if self.has_errors else (out_fd, log_fd):
                os.ftruncate(fd, 0)
            disk.write(payload_fd, payload)
            if len(payload) < self.payload_bytes:
                os.ftruncate(payload_fd, len(payload))
            self.payload_bytes = len(payload)
            self.sock.send(order.pack())
            self._set_timeout(order.wall_s * 20 + order.cpu_s + _GRACE_S)
            packet = self._checked(self.sock.recv(4096))
            max_bytes = (order.output_kib << 10) * 2 + 1
            log = _read(log_fd, max_bytes + order.tests * frames.RECORD_BYTES)
            err = _read(err_fd, max_bytes)
            self.has_errors = bool(err)
            records = frames.read_records(log, order.tests)
            ends = frames.Exit.unpack(packet), frames.Exit.unpack_second(packet)
            return ProcessResult(ends[0], _read(out_fd, max_bytes), err, records, ends[1])
        except OSError as exc:
            raise WorkerDied(str(exc)) from exc

    def greeting(self) -> bytes:
        """Return the first message, and take over the output file that may come along. Raises: OSError; WorkerDied."""
        self._set_timeout(_START_S)
        packet, files, _, _ = socket.recv_fds(self.sock, 4096, 1)
        for file in files:  # a file that programs find by its path
            os.close(self.files[1])
            self.files[1] = file
        return self._checked(packet)

    def _set_timeout(self, timeout_s: float) -> None:
        if timeout_s != self.answer_timeout_s:
            # The kernel keeps the time: a timeout of Python's socket would cost two more calls for each packet.
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", math.ceil(timeout_s), 0))
            self.answer_timeout_s = timeout_s

    def _checked(self, packet: bytes) -> bytes:
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

    def close_our_ends(self) -> None:
        """Close our descriptors in a fork of the caller; the worker still belongs to the caller."""
        self.sock.close()
        for fd in (*self.files, self.lock_fd):
            os.close(fd)
        self.files, self.lock_fd = [], -1

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
        # Read and cleared in one statement, because two threads may close at once.
        (files, self.files), (lock_fd, self.lock_fd) = (self.files, []), (self.lock_fd, -1)
        for fd in files:
            os.close(fd)
        if lock_fd >= 0:
            work_folders.remove(self.home, lock_fd)
            cgroups.remove(self.cgroups)


def _end_session(leader: int) -> None:
    """Kill the processes that a worker's runs have left behind, by its process session.

    Whole groups are killed at once, so that no fork escapes. This is repeated until there is no new group: a fork bomb
    makes some meanwhile.
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


def order(kind: int, limits: Limits, tests: int = 1) -> frames.Order:
    """Return the order to run `tests` tests in one process under the limits of one test."""
    seconds, sizes = (limits.wall_s, limits.cpu_s), (limits.memory_mib, limits.output_kib, limits.disk_mib)
    return frames.Order(kind, *seconds, *sizes, limits.processes, tests)


def tail(err: bytes, max_characters: int = ERROR_CHARACTERS) -> str:
    """Return the last `max_characters` characters that a program wrote to stderr."""
    return err[-4 * max_characters :].decode("utf-8", "replace")[-max_characters:].strip()


def signal_name(number: int) -> str:
    """Return the name of a signal; real-time signals have only a number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _read(fd: int, max_bytes: int) -> bytes:
    data = os.pread(fd, min(_FIRST_READ, max_bytes), 0)
    return data if len(data) < _FIRST_READ else os.pread(fd, min(os.fstat(fd).st_size, max_bytes), 0)


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
    packages: tuple[str, ...] = (),
    sessions: Mapping[str, int] | None = None,
) -> Worker:
    """Start a worker behind these walls, which are not tested yet. With `sessions` (`keepers.BOUNDS`) it is a keeper.

    Its programs have fixed hashes, so that equal runs, and repeated calls of a session, give equal outputs.

    Raises: WallRefused naming the wall that this machine refuses; WorkerDied; IsolationError.
    """
    if fault := limit_fault("a worker of the sandbox", _MIN_FILES, _MIN_PROCESSES):
        raise IsolationError(fault)
    new_cgroups: dict[str, str] = {}
    if CGROUP in walls:
        try:
            new_cgroups = cgroups.make(number)
        except OSError as exc:
            if exc.errno in _SHORT_OF:
                raise WorkerDied(f"{interpreter}: {exc}") from exc
            raise WallRefused(CGROUP, exc.strerror or str(exc)) from exc
    with contextlib.ExitStack() as undo:
        undo.callback(cgroups.remove, new_cgroups)
        try:
            home, lock_fd = work_folders.make()
            undo.callback(work_folders.remove, home, lock_fd)
            own_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.enter_context(own_end)
            own_end.settimeout(None)
            with child_end:
                files: list[int] = []
                for name in ("payload", "out", "err", "log"):
                    files.append(os.memfd_create(name, os.MFD_CLOEXEC))
                    undo.callback(os.close, files[-1])
                config = {
                    "walls": sorted(walls), "home": home, "uid": _FIRST_UID + os.getpid() % 30_000 * 64 + number % 64,
                    "tools": tools, "packages": packages, "cgroups": new_cgroups, "sessions": sessions,
                    "host_file": work_folders.canary(home), "host_pid": os.getpid(),
                }  # fmt: skip
                process = _spawn(interpreter, (child_end.fileno(), *files[1:], files[0]), config)
            worker = Worker(
                process, own_end, home, lock_fd, {}, files, new_cgroups, bool(tools) and NAMESPACES not in walls
            )
            undo.pop_all()
            undo.callback(worker.close)
            hello: dict[str, Any] = json.loads(worker.greeting())
        except OSError as exc:
            raise WorkerDied(f"{interpreter}: {exc}") from exc
        if "failed" in hello:
            if hello["errno"] in _SHORT_OF:
                raise WorkerDied(f"{interpreter}: {hello['why']}")
            raise WallRefused(hello["failed"], hello["why"])
        worker.notes, worker.tried = hello["notes"] | {"python": hello["python"]}, hello.get("tried", {})
        undo.pop_all()
        return worker


def _spawn(interpreter: str, inherited: tuple[int, ...], config: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    """Start the process of a worker with these descriptors: control, out, err, log, payload. Raises: OSError."""
    # -I would ignore PYTHONHASHSEED. The environment is only ours in either case.
    options, code = ["-P", "-s", "-S", "-X", "utf8"], _START.format(here=_HERE)
    command = [interpreter, *options, "-c", code, ",".join(map(str, inherited)), json.dumps(config)]
    return subprocess.Popen(
        command, pass_fds=inherited, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=inherited[2],
        env=_ENVIRONMENT, cwd="/", start_new_session=True,
    )  # fmt: skip


class WallRefused(Exception):
    """The kernel of this machine refuses a wall."""

    def __init__(self, wall: str, why: str) -> None:
        super().__init__(why)
        self.wall = wall
