"""Questions to a computer algebra system, in a process that can be killed.

The time of a question starts when the process begins to work on it, not in the queue or while the process starts up. No
signal is used on this side, so that threads, asyncio and process groups all work. The process inherits no environment
but the path of the interpreter. It is replaced after `MAX_QUESTIONS` questions, when it dies, and when it is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path

from pipeline.errors import GradingError

MAX_QUESTIONS = 200
STARTUP_S = 120.0
WALL_PER_CPU = 40.0 if os.name == "posix" else 1.6
"""Seconds on the clock allowed per second of CPU time. Where the system ends the process after its CPU time, the clock
is only a last resort, as a busy machine is not the answer's fault."""
SCRIPT = Path(__file__).with_name("algebra_process.py")


class TimedOut(Exception):
    """The question used up its time or memory; the process was killed."""


class _Process:
    """A helper process: its pipes, a thread that reads its lines, and the number of questions that it was asked."""

    def __init__(self) -> None:
        keep = {k: v for k, v in os.environ.items() if k in {"PATH", "SYSTEMROOT", "LD_LIBRARY_PATH"}}
        self.asked = 0
        self.is_ready = False
        self.lines: queue.Queue[str] = queue.Queue()
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=keep | {"OMP_NUM_THREADS": "1"},
            text=True,
            bufsize=1,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")  # the process has ended

    def line(self, seconds: float) -> str | None:
        """Return the next line; "" if the process has ended, None if no line came in time."""
        try:
            return self.lines.get(timeout=seconds)
        except queue.Empty:
            return None

    def wait_until_ready(self) -> bool:
        """Wait until the process has started up; True if it has."""
        self.is_ready = self.is_ready or bool(self.line(STARTUP_S))
        return self.is_ready

    def send(self, text: str) -> None:
        """Write one line to the process."""
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        self.asked += 1

    def end(self) -> None:
        """Kill the process and wait for it."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()


class Algebra:
    """A helper process that is started when first needed and asked one question at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._pid = os.getpid()

    def equal(self, gold: str, answer: str, seconds: float) -> bool | None:
        """True if two LaTeX answers are equal; None if the algebra system could not read one of them.

        Raises: TimedOut, GradingError if no process can be started.
        """
        # After a fork the pipes belong to the parent, and a thread of the parent may hold the lock forever.
        if self._pid != os.getpid():
            self._lock, self._process, self._pid = threading.Lock(), None, os.getpid()
        with self._lock:
            process = self._ready()
            try:
                process.send(json.dumps({"gold": gold, "answer": answer, "seconds": seconds}))
                line = process.line(seconds * WALL_PER_CPU)
            except (BrokenPipeError, OSError):
                line = ""
            if not line:
                self._replace()
                raise TimedOut
            equal = json.loads(line)["equal"]
            if process.asked >= MAX_QUESTIONS:
                self._replace()  # sympy's caches grow with every question
        return None if equal is None else bool(equal)

    def close(self) -> None:
        """End the helper process, if there is one."""
        if self._pid == os.getpid():
            self._drop()

    def _ready(self) -> _Process:
        if self._process is None or self._process.process.poll() is not None:
            self._replace()
        assert self._process is not None
        if not self._process.wait_until_ready():
            self._drop()
            raise GradingError(f"{SCRIPT.name} did not start; check that math_verify imports, or turn slow_path off")
        return self._process

    def _replace(self) -> None:
        """Kill the process and start another, which starts up while other rows are graded."""
        self._drop()
        try:
            self._process = _Process()
        except OSError as exc:
            raise GradingError(f"cannot start {SCRIPT.name}: {exc}; turn the option slow_path off") from exc

    def _drop(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


ALGEBRA = Algebra()
atexit.register(ALGEBRA.close)
