"""Sessions: calls that share files, an environment and a Python interpreter, which stay between calls."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import weakref
from dataclasses import replace
from typing import Any, Literal

from verizero.pipeline.errors import SessionError
from verizero.sandbox.calls import (
    Base,
    CallResult,
    Outcome,
    PastCall,
    Quota,
    digest_of,
    order_of,
    outcome,
    without_folder_name,
)
from verizero.sandbox.keepers import Connection
from verizero.sandbox.languages import TOOLS, require_walls
from verizero.sandbox.pool import Pool
from verizero.sandbox.process import WorkerDied, tail
from verizero.sandbox.results import Limits, Status
from verizero.sandbox.worker import answers, frames
from verizero.sandbox.worker.frames import MAX_TEXT_BYTES

_ATTEMPTS = 3
_MAX_KILLS = 2
"""Kills by an unknown process after which a call is repeated. After one more, its own program is blamed."""
Kind = Literal["python", "shell"]
_DEFAULT_LIMITS = Limits()
_LOST = "the session is lost. Programs that look at a clock or at random bytes of the kernel cannot be repeated"
_DEFAULT_QUOTA = Quota()


class Session:
    """One session. Its methods may be called from any thread; they wait for each other.

    Without `pool` it makes its own, with a shell. In sessions of equal seeds, equal calls give equal bytes, unless the
    programs read a clock or random bytes of the kernel.

    Raises: IsolationError; SessionError.
    """

    def __init__(
        self,
        pool: Pool | None = None,
        *,
        limits: Limits = _DEFAULT_LIMITS,
        quota: Quota = _DEFAULT_QUOTA,
        seed: int = 0,
    ) -> None:
        self._own_pool = Pool(workers=1, tools=TOOLS) if pool is None else None
        self.pool = pool or self._own_pool or Pool()
        self.limits, self.quota = limits, quota
        self.seed = seed
        self.folds = 0
        """Number of times that the session was rebuilt, because it was folded or its keeper had died."""
        self.num_calls, self.cpu_s = 0, 0.0
        self._base, self._log = Base(), list[PastCall]()
        self._lock, self._owner_pid, self._closed = threading.RLock(), os.getpid(), False
        self._lost = ""
        self._connection: Connection | None = None
        self._finalizer: Any = None
        try:
            self._open_and_replay()
        except BaseException:
            self.close()
            raise

    @property
    def level(self) -> int:
        """The isolation level."""
        return self._open_connection().keeper.level

    def python(self, code: str, *, wall_s: float | None = None, cpu_s: float | None = None) -> CallResult:
        """Run a cell and return its result; the limits of the call can be lowered.

        Raises: ValueError on text that is too long; SessionError.
        """
        return self._call("python", code, wall_s, cpu_s)

    def shell(self, line: str, *, wall_s: float | None = None, cpu_s: float | None = None) -> CallResult:
        """Run a line of Bash and return its result. All that it has started is dead when it has ended.

        Raises: ValueError, also where the pool has no tools; SessionError.
        """
        if not self.pool.tools:
            raise ValueError("this pool has no shell: make it with Pool(tools=sandbox.TOOLS)")
        require_walls(self.pool)
        return self._call("shell", line, wall_s, cpu_s)

    def write(self, path: str, data: bytes | str) -> None:
        """Write a file, and make the folders of its path. Raises: ValueError on a path outside, or without room."""
        data = data.encode() if isinstance(data, str) else data
        with self._lock:
            self._do({"do": "write", "path": path}, data)
            self._log.append(PastCall("write", path, data))

    def read(self, path: str) -> bytes:
        """Return a file's bytes. Raises: ValueError if there is no such file."""
        with self._lock:
            return self._do({"do": "read", "path": path})[1]

    def fold(self) -> None:
        """End the session's processes and remove its files; the next call restores both."""
        with self._lock, contextlib.suppress(WorkerDied):  # the keeper has died, and the session with it
            self._open_connection().ask({"do": "fold"})

    def close(self) -> None:
        """End the session. May be called twice."""
        self._closed = True
        if self._finalizer is not None:
            self._finalizer()
        if self._own_pool is not None:
            self._own_pool.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_connection(self) -> Connection:
        """Return the connection. Raises: SessionError if it may not be used; WorkerDied if there is none."""
        if self._closed:
            raise SessionError("the session is closed; open another")
        if self._lost:
            raise SessionError(f"{self._lost}; {_LOST}")
        if self._owner_pid != os.getpid():
            raise SessionError("the session belongs to the process that opened it, not to a fork of that process")
        if self._connection is None:
            raise WorkerDied("the session has no keeper")
        return self._connection

    def _open_and_replay(self) -> None:
        """Open the session at the keeper, and repeat its past calls. Raises: IsolationError; SessionError."""
        for attempt in range(_ATTEMPTS):
            try:
                self._connect()
                self._replay()
                return
            except WorkerDied as exc:
                if attempt == _ATTEMPTS - 1:
                    raise SessionError(f"no session could be opened: {exc}") from exc

    def _connect(self) -> None:
        """Open an empty session at the keeper. Raises: WorkerDied; IsolationError."""
        if self._finalizer is not None:
            self._finalizer()
        limits = self.limits
        self._connection = self.pool.keeper().open(
            {
                "limits": (limits.wall_s, limits.cpu_s, limits.memory_mib, limits.output_kib, limits.processes),
                "seed": self.seed,
                "idle_s": self.quota.idle_s,
                "disk_mib": math.ceil(self.quota.disk_mib),
                "files": math.ceil(self.quota.files),
            }
        )
        self._finalizer = weakref.finalize(self, self._connection.close)

    def _replay(self, digest: str = "") -> None:
        """Repeat the past calls in a new session, and compare their answers; also the files if `digest` is given.

        Raises: SessionError; WorkerDied.
        """
        connection = self._open_connection()
        if self._base.files is not None or self._base.state:
            order = {"do": "unpack", "state": self._base.state_in(connection.scratch)}
            self._ask(order, self._base.files)
        for number, call in enumerate(self._log, 1):
            answer, _ = self._ask(order_of(call), call.data if call.kind == "write" else None)
            if call.digest and digest_of(*self._outcome(answer)[:3], connection.scratch) != call.digest:
                raise self._end_as_lost(f"call {number} of {len(self._log)} answered differently when it was repeated")
        if digest and self._ask({"do": "digest"})[0]["digest"] != digest:
            raise self._end_as_lost(f"the files came out differently when {len(self._log)} calls were repeated")

    def _end_as_lost(self, why: str) -> SessionError:
        """End the session for good, and return the error to raise."""
        self._lost = why
        if self._finalizer is not None:
            self._finalizer()
        return SessionError(f"{why}; {_LOST}")

    def _ask(self, order: dict[str, Any], data: bytes | None = None) -> tuple[dict[str, Any], bytes]:
        """Return the keeper's answer and the bytes sent with it. Raises: WorkerDied; ValueError if it refuses."""
        files = [] if data is None else [answers.file(data)]
        try:
            answer, new_files = self._open_connection().ask(order, files)
        finally:
            for fd in files:
                os.close(fd)
        content = b""
        for fd in new_files:
            content = os.pread(fd, os.fstat(fd).st_size, 0)
            os.close(fd)
        if "broken" in answer:
            raise WorkerDied(answer["broken"])
        if "refused" in answer:
            raise ValueError(answer["refused"])
        return answer, content

    def _do(self, order: dict[str, Any], data: bytes | None = None) -> tuple[dict[str, Any], bytes]:
        """Return the keeper's answer; rebuild the session first if it was folded or lost. Raises: SessionError."""
        trouble = ""
        for _ in range(_ATTEMPTS):
            try:
                answer, content = self._ask(order, data)
                if "folded" not in answer:
                    return answer, content
                self.folds += 1
                self._ask({"do": "rebuild"})
                self._replay(answer["folded"])
            except WorkerDied as exc:
                trouble = str(exc)
                self.folds += 1
                self._open_and_replay()
        raise SessionError(f"the session was lost {_ATTEMPTS} times in a row; the last error: {trouble}")

    def _call(
        self, kind: Literal["python", "shell"], text: str, wall_s: float | None, cpu_s: float | None
    ) -> CallResult:
        size = len(text.encode("utf-8", "surrogatepass"))
        if kind == "shell" and "\0" in text:
            raise ValueError("a line of the shell holds no NUL")
        if size > MAX_TEXT_BYTES:
            raise ValueError(f"a call has at most {MAX_TEXT_BYTES} bytes, this one {size}; use write() for data")
        with self._lock:
            cpu_s_left = self.quota.cpu_s - self.cpu_s
            limits = self.limits.lowered(wall_s=wall_s, cpu_s=cpu_s)
            if self.num_calls >= self.quota.calls or cpu_s_left <= 0:
                used = (
                    f"{self.num_calls} calls of {self.quota.calls}, {self.cpu_s:.1f} CPU seconds of {self.quota.cpu_s}"
                )
                status: Status = "cpu_limit" if cpu_s_left <= 0 else "runtime_error"
                return CallResult(status, "", "", f"used up: {used}", 0.0, 0.0, self.level)
            self.num_calls += 1
            call = PastCall(kind, text, wall_s=limits.wall_s, cpu_s=min(limits.cpu_s, cpu_s_left))
            for _ in range(_MAX_KILLS + 1):
                answer, _ = self._do(order_of(call))
                if answer["status"] != signal.SIGKILL or answer["why"] != frames.ENDED:
                    break
                self._open_and_replay()  # killed by the kernel or another user: repeat it, in the state before the call
            return self._record(call, answer)

    def _record(self, call: PastCall, answer: dict[str, Any]) -> CallResult:
        """Add a call that has ended to the past, and return its result."""
        connection = self._open_connection()
        status, out, err, reason = self._outcome(answer)
        self.cpu_s += answer["cpu"]
        digest = digest_of(status, out, err, connection.scratch)
        self._log.append(replace(call, digest=digest))
        ended = call.kind == "python" and not answer["alive"]
        if ended or (not answer["alive"] and answer["why"] != frames.ENDED):
            # Only files are left. Begin the past with them: repeated, this call might end differently.
            now, files = self._ask({"do": "pack"})
            self._base, self._log = self._base_now(now, files), []
        error = "" if status == "passed" else f"{tail(err)}\n{reason}".strip()
        stdout, stderr = out.decode("utf-8", "replace"), err.decode("utf-8", "replace")
        return CallResult(status, stdout, stderr, error, answer["cpu"], answer["wall"], connection.keeper.level, ended)

    def _outcome(self, answer: dict[str, Any]) -> Outcome:
        """Return status, output, errors and reason of an ended call."""
        connection, max_output = self._open_connection(), self.limits.output_kib << 10
        spans = zip(answer["begins"], answer["ends"], strict=True)
        out, err = (connection.output(i, begin, min(end, begin + max_output)) for i, (begin, end) in enumerate(spans))
        return outcome(answer, out, err, self.limits, self.quota)

    def _base_now(self, answer: dict[str, Any], files: bytes) -> Base:
        return Base(files, without_folder_name(answer["state"], self._open_connection().scratch))
