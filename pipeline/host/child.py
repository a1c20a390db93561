"""Starts, awaits and ends child processes. A child ends at the latest with the process that started it.

A child of our own imports this package, and no file of the working folder: see `module_command`.

`start` begins a child in its own session: Ctrl-C then reaches only this process, which ends its children in order by
`end`, with all that they started. If this process is killed, a child ends too, in one of three ways:

- `start(..., stdin=PIPE)`: a program of ours that ends when its standard input does;
- `start(..., dies=True)`, or `die_with` in the child's own code: the kernel ends it, but not what it started;
- `start(watched(command))`: for any command: this file, as a program, ends it and all that it started.

`python child.py [LIMITS] PID PROGRAM …` runs PROGRAM in a process group. When PROGRAM ends, when the process PID dies,
or when this process gets SIGTERM, the group gets SIGTERM and then SIGKILL. Limits of each of its
processes: --cpu-s=SECONDS, --memory-mib=MEBIBYTES. The status of PROGRAM is written to the file of --status=FILE.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
POLL_S = 0.02
"""Seconds between two checks whether a child has ended."""
CHECK_S = 0.1
"""Seconds between two checks whether a child is ready; in this file's program: whether the process PID lives."""
GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL."""
LAST_LINES = 15
"""Lines of a child's log that an error shows."""


def start(
    command: Sequence[str], more: Mapping[str, str] = {}, *, log: Path | None = None, dies: bool = False, **how: Any
) -> subprocess.Popen[bytes]:
    """Start a child in its own session, with this process's environment variables and `more`.

    `log`: its output and errors are appended there. `dies`: the kernel kills it when the thread that called this ends.
    `how`: further arguments of Popen, such as pipes. Without a pipe its standard input is empty.
    Raises: OSError if the program cannot be started.
    """
    if dies:
        # Between fork and exec: the kernel keeps the setting over exec, so no moment is left out.
        how["preexec_fn"] = partial(die_with, os.getpid())
    with contextlib.ExitStack() as stack:
        out = None if log is None else stack.enter_context(log.open("ab"))
        usual = {"env": {**os.environ, **more}, "stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
        return subprocess.Popen(command, start_new_session=True, **{**usual, **how})


def watched(command: Sequence[str], *limits: str) -> list[str]:
    """Return the command that runs `command` under this file's program, which ends it when this process dies."""
    # Without -P its imports would look into this file's folder first.
    return [sys.executable, "-S", "-P", __file__, *limits, str(os.getpid()), *command]


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Let the kernel send this process the signal `number` when its parent, process `parent`, ends or is killed."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)


def status_of(child: subprocess.Popen[bytes]) -> int | None:
    """Return the status of a child that has ended, else None. Unlike `poll`, this keeps its process id."""
    if child.returncode is None:
        with contextlib.suppress(ChildProcessError):  # another thread has waited for it just now
            ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return None
            return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    return child.wait()


def ends_within(child: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for `seconds` at most; return True if the child has ended."""
    until = time.monotonic() + seconds
    while status_of(child) is None:
        if time.monotonic() >= until:
            return False
        time.sleep(POLL_S)
    return True


def end(*children: subprocess.Popen[bytes], grace_s: float = GRACE_S, first: int = signal.SIGTERM) -> None:
    """End children: send `first` to each; when it has ended, or after `grace_s`, send SIGKILL to its group."""
    for child in children:
        if status_of(child) is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, first)
    # One deadline for all: each got its signal before the wait begins.
    until = time.monotonic() + grace_s
    for child in children:
        ends_within(child, until - time.monotonic())
        if child.returncode is None:
            signal_group(child, signal.SIGKILL)
        child.wait()


def signal_group(child: subprocess.Popen[bytes], number: int) -> None:
    """Send the signal to the child and to all processes of its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def close_pipes(child: subprocess.Popen[bytes]) -> None:
    """Close this side of the child's pipes."""
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            # Closing flushes, which fails if the process is gone.
            with contextlib.suppress(OSError):
                pipe.close()


class NotReady(Exception):
    """A child ended, or the time was over, before it was ready. The message ends with the last lines of its log."""

    def __init__(self, what: str, status: int | None, log: Path) -> None:
        self.what, self.status = what, status
        self.tail = f"{log} ends:\n" + "\n".join(last_lines(log))
        super().__init__(f"{what}; {self.tail}")


def wait_until(is_ready: Callable[[], bool], child: subprocess.Popen[bytes], log: Path, timeout_s: float) -> None:
    """Wait until the child is ready. Raises: NotReady."""
    until = time.monotonic() + timeout_s
    while True:
        # Checked first: if our server could not get its address, another server may answer there.
        if (status := status_of(child)) is not None:
            raise NotReady(f"ended with status {status}", status, log)
        if is_ready():
            return
        if time.monotonic() > until:
            raise NotReady(f"did not answer within {timeout_s:g} s", None, log)
        time.sleep(CHECK_S)


def last_lines(log: Path, max_lines: int = LAST_LINES) -> list[str]:
    """Return the last lines of a log; none if there is no log."""
    return appended(log, 0).decode(errors="replace").splitlines()[-max_lines:]


def appended(log: Path, begin: int) -> bytes:
    """Return the bytes of a log from position `begin` on; none if it cannot be read."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(begin)
        return file.read()
    return b""


def size_of(log: Path) -> int:
    """Return the size of a log in bytes: the output of a new child is appended there."""
    return log.stat().st_size if log.exists() else 0


def stat_of(pid: int) -> list[str]:
    """Return what /proc says of a process: state, parent and so on (`man proc_pid_stat`); empty if it has ended."""
    try:
        # The name comes in parentheses and may itself have some, so the fields are counted from the last one.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def family_of(pid: int) -> dict[int, list[str]]:
    """Return a process and all that it started, each with its `stat_of`. Raises: OSError without Linux's /proc."""
    everybody = {int(name): stat for name in os.listdir("/proc") if name.isdigit() and (stat := stat_of(int(name)))}
    family = {pid: everybody.get(pid, [])}
    while more := {i: stat for i, stat in everybody.items() if int(stat[1]) in family and i not in family}:
        family |= more
    return family


class Lines:
    """Lines to and from a child with pipes; used by one thread at a time."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        self._stdin, self._stdout, self._buffer = child.stdin, child.stdout.fileno(), b""
        self._ready = select.poll()
        self._ready.register(self._stdout, select.POLLIN)

    def send(self, line: str) -> None:
        """Write a line. Raises: OSError if the child is gone."""
        assert self._stdin is not None
        self._stdin.write(line.encode() + b"\n")
        self._stdin.flush()

    def next(self, timeout_s: float) -> bytes | None:
        """Return the next line with its line end; b"" if the output is closed, None if no line came in time."""
        until = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            if not self._ready.poll(max(0.0, until - time.monotonic()) * 1000):
                return None
            part = os.read(self._stdout, 65536)
            if not part:
                return b""
            self._buffer += part
        line, end, self._buffer = self._buffer.partition(b"\n")
        return line + end


class Helper:
    """A program of ours that answers each line of JSON with one, after a first line that says that it is ready.

    It is started when first needed and asked one question at a time, from any thread. It is replaced when it dies, and
    killed when it is silent. It runs in the folder / and inherits no environment variable but those by which programs
    are found.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], start_s: float) -> None:
        self._command, self._environment, self._start_s = command, environment, start_s
        self._lock, self._owner = threading.Lock(), os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False

    def ask(self, question: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Return the reply. Raises: OSError if either is no JSON, or the program fails or is silent for so long."""
        try:
            text = json.dumps(question, default=str)
        except (ValueError, TypeError, RecursionError) as exc:
            raise OSError(f"cannot be asked: {exc}") from exc
        # After a fork the pipes belong to the parent, and a thread of the parent may hold the lock forever.
        if self._owner != os.getpid():
            self._lock, self._process, self._owner = threading.Lock(), None, os.getpid()
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._replace()
            self._is_ready = self._is_ready or bool(self._lines.next(self._start_s))
            if not self._is_ready:
                self._drop()
                raise OSError("did not start")
            line: bytes | None = b""
            with contextlib.suppress(OSError):
                self._lines.send(text)
                line = self._lines.next(timeout_s)
            if not line:
                self._replace()  # it starts up while other work is done
                raise OSError("ended" if line is not None else f"was silent for {timeout_s:.0f} s on a busy machine")
            try:
                reply: dict[str, Any] = json.loads(line)
            except ValueError as exc:
                self._replace()
                raise OSError(f"answered what is no JSON: {line!r:.80}") from exc
        return reply

    def close(self) -> None:
        """End the program, if it runs and is ours."""
        if self._owner == os.getpid():
            self._drop()

    def _replace(self) -> None:
        self._drop()
        kept = {k: v for k, v in os.environ.items() if k in ("PATH", "LD_LIBRARY_PATH")}
        self._process = start(
            self._command, env={**kept, **self._environment}, cwd="/",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._lines, self._is_ready = Lines(self._process), False

    def _drop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            end(process, grace_s=0)
            close_pipes(process)


def main(arguments: list[str]) -> int:
    """Return the program's exit status; 0 if this process ended it."""
    options = {}
    while arguments[0].startswith("--"):
        name, _, options[name] = arguments.pop(0).partition("=")
    owner, command = int(arguments[0]), arguments[1:]
    signals: list[int] = []
    # Before the program starts, so that no signal is missed.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: signals.append(number))
    # Signals to this process's group must not reach the caller's group.
    if os.getpgrp() != os.getpid():
        os.setsid()
    # This process has one thread, so a function may run between fork and exec.
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=partial(_limit, options))
    # A process whose parent died gets another parent, without a signal: so the parent is checked again and again.
    while program.poll() is None and not signals and os.getppid() == owner:
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(CHECK_S)
    status = program.poll()
    if "--status" in options and status is not None:
        # This process is killed with the group, so its own status says nothing about PROGRAM.
        with open(options["--status"], "w") as file:
            file.write(str(status))
    # This process is in the group, but its handler only remembers the signal.
    os.killpg(0, signal.SIGTERM)
    ends_within(program, GRACE_S)
    os.killpg(0, signal.SIGKILL)
    return 0 if status is None else status


def _limit(options: Mapping[str, str]) -> None:
    """Set the limits of this process, which its children inherit."""
    if (seconds := int(options.get("--cpu-s", 0))) > 0:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    if (mebibytes := int(options.get("--memory-mib", 0))) > 0:
        resource.setrlimit(resource.RLIMIT_AS, (mebibytes << 20, mebibytes << 20))


SAFE_PATH = "PYTHONSAFEPATH"
"""The environment variable that has the effect of -P, for programs that a launcher starts."""
ROOT = str(Path(__file__).absolute().parents[3])
"""The folder with the package `verizero`: that of a clone, or that of installed packages."""


def import_path() -> dict[str, str]:
    """Return the variable PYTHONPATH with which a child imports this package from the same folder as this process.

    An installed package needs no folder. That of a clone also has top-level folders with common names, as `verifiers`
    and `pipeline`, which must not hide a library or a file of the user's.
    """
    is_installed = os.path.basename(ROOT) in ("site-packages", "dist-packages")
    root = [ROOT] if ROOT in map(os.path.abspath, sys.path) and not is_installed else []
    folders = [*root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {"PYTHONPATH": os.pathsep.join(folders)}


def module_command(module: str) -> list[str]:
    """Return the command that runs a module; by -P no `flows.py` or `random.py` of the working folder is taken."""
    return [sys.executable, "-P", "-m", module]


def leave_safe_path() -> None:
    """Remove the variable from this process's environment: the user's own programs may import files next to them."""
    os.environ.pop(SAFE_PATH, None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
