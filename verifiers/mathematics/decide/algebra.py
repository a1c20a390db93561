"""Questions to a computer algebra system, in a process that can be killed.

The budget of a question is one of work (`algebra_process.py`), so that no verdict depends on how busy the machine is.
Where the process does not answer for another reason, that is a failure of the grader. No signal is used on this side,
so that threads, asyncio and process groups all work. The process inherits no environment but the path of the
interpreter. It is replaced when it dies, and when it is killed.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from verizero.pipeline.errors import GradingError
from verizero.pipeline.host import child

STARTUP_S = 120.0
WALL_PER_WORK = 100.0
"""Seconds on the clock allowed per second of budget. Past them the machine is too busy, or the process hangs."""
SCRIPT = Path(__file__).with_name("algebra_process.py")


class TimedOut(Exception):
    """The question used up its budget of work, or its memory."""


class Algebra:
    """A helper process that is started when first needed and asked one question at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self._pid = os.getpid()

    def equal(self, gold: str, answer: str, seconds: float) -> bool | None:
        """True if two LaTeX answers are equal; None if the algebra system could not read one of them.

        Raises: TimedOut; GradingError if the process does not start, or ends or is silent for no fault of the question.
        """
        # After a fork the pipes belong to the parent, and a thread of the parent may hold the lock forever.
        if self._pid != os.getpid():
            self._lock, self._process, self._pid = threading.Lock(), None, os.getpid()
        with self._lock:
            lines = self._ready()
            try:
                lines.send(json.dumps({"gold": gold, "answer": answer, "seconds": seconds}))
                line = lines.next(seconds * WALL_PER_WORK)
            except OSError:
                line = b""
            if not line:
                self._replace()
                silent = f"was silent for {seconds * WALL_PER_WORK:.0f} s on a busy machine"
                problem = silent if line is None else "ended"
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

    def _ready(self) -> child.Lines:
        if self._process is None or self._process.poll() is not None:
            self._replace()
        self._is_ready = self._is_ready or bool(self._lines.next(STARTUP_S))
        if not self._is_ready:
            self._drop()
            raise GradingError(f"{SCRIPT.name} did not start; check that math_verify imports, or turn slow_path off")
        return self._lines

    def _replace(self) -> None:
        """Kill the process and start another, which starts up while other rows are graded."""
        self._drop()
        keep = {k: v for k, v in os.environ.items() if k in {"PATH", "SYSTEMROOT", "LD_LIBRARY_PATH"}}
        try:
            self._process = child.start(
                [sys.executable, "-P", "-s", str(SCRIPT)],
                # sympy's work depends on the order of sets
                env=keep | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as exc:
            raise GradingError(f"cannot start {SCRIPT.name}: {exc}; turn the option slow_path off") from exc
        self._lines, self._is_ready = child.Lines(self._process), False

    def _drop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            child.end(process, grace_s=0)
            child.close_pipes(process)


ALGEBRA = Algebra()
atexit.register(ALGEBRA.close)
