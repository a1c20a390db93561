"""Questions to a computer algebra system, in a process that can be killed.

The budget of a question is one of work (`algebra_process.py`), so that no verdict depends on how busy the machine is.
Where the process does not answer for another reason, that is a failure of the grader. No signal is used on this side,
so that threads, asyncio and process groups all work. The process inherits no environment but the path of the
interpreter. It is replaced when it dies, and when it is killed.
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

from verizero.pipeline.errors import GradingError

STARTUP_S = 120.0
WALL_PER_WORK = 100.0
"""Seconds on the clock allowed per second of budget. Past them the machine is too busy, or the process hangs."""
SCRIPT = Path(__file__).with_name("algebra_process.py")


class TimedOut(Exception):
    """The question used up its budget of work, or its memory."""


class _Process:
    """A helper process: its pipes, and a thread that reads its lines."""

    def __init__(self) -> None:
        keep = {k: v for k, v in os.environ.items() if k in {"PATH", "SYSTEMROOT", "LD_LIBRARY_PATH"}}
        self.is_ready = False
        self.lines: queue.Queue[str] = queue.Queue()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-s", str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=keep | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},  # sympy's work depends on the order of sets
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

        Raises: TimedOut; GradingError if the process does not start, or ends or is silent for no fault of the question.
        """
        # After a fork the pipes belong to the parent, and a thread of the parent may hold the lock forever.
        if self._pid != os.getpid():
            self._lock, self._process, self._pid = threading.Lock(), None, os.getpid()
        with self._lock:
            process = self._ready()
            try:
                process.send(json.dumps({"gold": gold, "answer": answer, "seconds": seconds}))
                line = process.line(seconds * WALL_PER_WORK)
            except (BrokenPipeError, OSError):
                line = ""
            if not line:
                self._replace()
                problem = "ended" if line == "" else f"was silent for {seconds * WALL_PER_WORK:.0f} s on a busy machine"
                raise GradingError(f"{SCRIPT.name} {problem}; grade again, or turn the option slow_path off")
        reply = json.loads(line)
        if "over" in reply:
            raise TimedOut
        if "failed" in reply:
            raise GradingError(f"{SCRIPT.name}: {reply['failed']}; grade again with more free memory")
        return None if reply["equal"] is None else bool(reply["equal"])

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
