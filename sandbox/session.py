"""Sessions: calls that share files, an environment and a Python interpreter, which stay between calls.

A session whose keeper or interpreter is killed from outside is lost, and every later call of it raises SessionError.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from verizero.pipeline.errors import SessionError
from verizero.sandbox.keepers import BOUNDS, Connection
from verizero.sandbox.languages import require_walls
from verizero.sandbox.pool import Pool
from verizero.sandbox.process import WorkerDied, over_limit, signal_name, tail
from verizero.sandbox.results import WITH_NAMESPACES, Limits, Status
from verizero.sandbox.worker import frames
from verizero.sandbox.worker.frames import MAX_TEXT_BYTES


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


_DEFAULT_LIMITS = Limits()


class Session(contextlib.AbstractContextManager["Session"]):
    """One session. Its methods may be called from any thread; they wait for each other.

    `limits` are those of one call; `disk_mib` is of all files together. `calls`: how many calls there may be. `pool`
    must have tools for the shell (`Pool.with_tools`). Equal calls give equal bytes, unless the programs read a clock or
    random bytes of the kernel.

    Raises: IsolationError; SessionError.
    """

    def __init__(self, pool: Pool, *, limits: Limits = _DEFAULT_LIMITS, calls: int = 1000) -> None:
        self.pool, self.limits, self.calls = pool, limits, calls
        self.num_calls = 0
        self._lock, self._owner_pid, self._closed = threading.RLock(), os.getpid(), False
        self._lost = ""
        self._end: Callable[[], object] = lambda: None
        try:
            self._connection = self._connect()
        except BaseException:
            self.close()
            raise
        self._end = weakref.finalize(self, self._connection.close)

    @property
    def level(self) -> int:
        """The isolation level."""
        return self._open_connection().keeper.level

    def python(self, code: str) -> CallResult:
        """Run a cell and return its result. Raises: ValueError on text that is too long; SessionError."""
        return self._call("python", code)

    def shell(self, line: str) -> CallResult:
        """Run a line of Bash, then end all that it started. Raises: ValueError, also without tools; SessionError."""
        if not self.pool.tools:
            raise ValueError("this pool has no shell: take its `with_tools()`")
        require_walls(self.pool)
        return self._call("shell", line)

    def close(self) -> None:
        """End the session. May be called twice."""
        self._closed = True
        self._end()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self) -> Connection:
        """Return a connection to a new session of the keeper. Raises: IsolationError; SessionError."""
        limits = self.limits
        order = {
            "limits": (limits.wall_s, limits.cpu_s, limits.memory_mib, limits.output_kib, limits.processes),
            "disk_mib": limits.disk_mib,
        }
        try:
            return self.pool.keeper().open(order)
        except WorkerDied as exc:
            raise SessionError(f"no session could be opened: {exc}") from exc

    def _open_connection(self) -> Connection:
        """Return the connection. Raises: SessionError if the session may not be used."""
        if self._closed:
            raise SessionError("the session is closed; open another")
        if self._lost:
            raise SessionError(self._lost)
        if self._owner_pid != os.getpid():
            raise SessionError("the session belongs to the process that opened it, not to a fork of that process")
        return self._connection

    def _end_as_lost(self, why: str) -> SessionError:
        """End the session for good, and return the error to raise."""
        self._lost = f"the session is lost, with its files and variables: {why}; open another"
        self._end()
        return SessionError(self._lost)

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        """Return the keeper's answer. Raises: SessionError."""
        try:
            answer = self._open_connection().ask(order)
        except WorkerDied as exc:
            raise self._end_as_lost(str(exc)) from exc
        if "broken" in answer:
            raise self._end_as_lost(answer["broken"])
        return answer

    def _call(self, kind: Literal["python", "shell"], text: str) -> CallResult:
        size = len(text.encode("utf-8", "surrogatepass"))
        if kind == "shell" and "\0" in text:
            raise ValueError("a line of the shell holds no NUL")
        if size > MAX_TEXT_BYTES:
            raise ValueError(f"a call has at most {MAX_TEXT_BYTES} bytes, this one {size}; let a program write files")
        with self._lock:
            limits = self.limits
            if self.num_calls >= self.calls:
                error = f"used up: {self.num_calls} calls of {self.calls}"
                return CallResult("runtime_error", "", "", error, 0.0, 0.0, self.level)
            self.num_calls += 1
            answer = self._ask({"do": kind, "text": text, "wall_s": limits.wall_s, "cpu_s": limits.cpu_s})
            is_killed = answer["status"] == signal.SIGKILL and answer["why"] == frames.ENDED
            if is_killed and self.level >= WITH_NAMESPACES:  # without namespaces, a program can kill itself
                raise self._end_as_lost("its program was killed from outside, as by the kernel for want of memory")
            most, spans = limits.output_kib << 10, list(zip(answer["begins"], answer["ends"], strict=True))
            out, err = (self._connection.output(i, a, min(b, a + most)) for i, (a, b) in enumerate(spans))
            status, reason = self._outcome(answer, any(end - begin > most for begin, end in spans))
        error = "" if status == "passed" else f"{tail(err)}\n{reason}".strip()
        stdout, stderr = out.decode("utf-8", "replace"), err.decode("utf-8", "replace")
        ended = kind == "python" and not answer["alive"]
        return CallResult(status, stdout, stderr, error, answer["cpu"], answer["wall"], self.level, ended)

    def _outcome(self, answer: dict[str, Any], is_long: bool) -> tuple[Status, str]:
        """Return status and reason of an ended call. `is_long`: its output is longer than it may be."""
        limits = replace(self.limits, memory_mib=BOUNDS["memory_mib"])
        why = frames.OUTPUT if is_long and answer["why"] == frames.ENDED else answer["why"]
        if reached := over_limit(why, answer["cpu"], answer["wall"], limits):
            return reached
        if (status := answer["status"]) is None:
            if answer["state"] == frames.NO_MEMORY:
                return "memory_limit", ""
            code = answer["code"] if answer["state"] == frames.FINISHED else answer["code"] or 1
        else:
            code = os.waitstatus_to_exitcode(status)
        if code < 0:
            return "runtime_error", f"killed by {signal_name(-code)}"
        return ("runtime_error", f"exit code {code}") if code else ("passed", "")
