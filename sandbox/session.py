"""Sessions: programs that keep their files, their environment and their interpreter from one call to the next."""

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
from verizero.sandbox.calls import Base, CallResult, Outcome, Past, Quota, digest_of, general, order_of, outcome
from verizero.sandbox.keepers import Connection
from verizero.sandbox.languages import TOOLS, require_walls
from verizero.sandbox.pool import Pool
from verizero.sandbox.process import WorkerDied, tail
from verizero.sandbox.results import Limits
from verizero.sandbox.worker import answers, frames
from verizero.sandbox.worker.frames import MOST_TEXT

_ATTEMPTS = 3
_KILLS = 2
"""Kills by nobody that we know of after which a call is repeated. Then it is taken to have killed itself."""
Kind = Literal["python", "shell"]
_DEFAULT_LIMITS = Limits()
_LOST = "the session is lost. Programs that look at a clock or at random bytes of the kernel cannot be repeated"
_DEFAULT_QUOTA = Quota()


class Session:
    """One session. Its methods may be called from any thread; they wait for each other.

    Without a pool it has one of its own, with a shell. Equal calls in sessions of equal seeds give equal bytes, as long
    as the programs look at no clock and ask the kernel for no random bytes.

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
        """The number of times that the session was rebuilt, because it was folded or its keeper had died."""
        self.num_calls, self.cpu_s = 0, 0.0
        self._base, self._log = Base(), list[Past]()
        self._lock, self._owner, self._closed = threading.RLock(), os.getpid(), False
        self._lost = ""
        self._connection: Connection | None = None
        self._finalizer: Any = None
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    @property
    def level(self) -> int:
        """The isolation level."""
        return self._live().keeper.level

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
        """Write a file; folders on its way are made. Raises: ValueError on a path outside, or without room."""
        data = data.encode() if isinstance(data, str) else data
        with self._lock:
            self._do({"do": "write", "path": path}, data)
            self._log.append(Past("write", path, data))

    def read(self, path: str) -> bytes:
        """Return a file's bytes. Raises: ValueError if there is no such file."""
        with self._lock:
            return self._do({"do": "read", "path": path})[1]

    def fold(self) -> None:
        """End the session's process and drop its files; the next call makes them again."""
        with self._lock, contextlib.suppress(WorkerDied):  # a keeper that is gone has nothing to end
            self._live().ask({"do": "fold"})

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

    def _live(self) -> Connection:
        """Return the connection. Raises: SessionError if there is none that may be used."""
        if self._closed:
            raise SessionError("the session is closed; open another")
        if self._lost:
            raise SessionError(f"{self._lost}; {_LOST}")
        if self._owner != os.getpid():
            raise SessionError("the session belongs to the process that opened it, not to a fork of that process")
        if self._connection is None:
            raise WorkerDied("the session has no keeper")
        return self._connection

    def _begin(self) -> None:
        """Open the session, and rebuild it where it has a past. Raises: IsolationError; SessionError."""
        for attempt in range(_ATTEMPTS):
            try:
                self._connect()
                self._replay()
                return
            except WorkerDied as exc:
                if attempt == _ATTEMPTS - 1:
                    raise SessionError(f"no session could be opened: {exc}") from exc

    def _connect(self) -> None:
        """Open a session at the keeper, without files. Raises: WorkerDied; IsolationError."""
        if self._finalizer is not None:
            self._finalizer()
        most = self.limits
        self._connection = self.pool.keeper().open(
            {
                "limits": (most.wall_s, most.cpu_s, most.memory_mib, most.output_kib, most.processes),
                "seed": self.seed,
                "idle_s": self.quota.idle_s,
                "disk_mib": math.ceil(self.quota.disk_mib),
                "files": math.ceil(self.quota.files),
            }
        )
        self._finalizer = weakref.finalize(self, self._connection.close)

    def _replay(self, digest: str = "") -> None:
        """Repeat the past in a fresh session, and compare, also the files if `digest` is given.

        Raises: SessionError; WorkerDied.
        """
        link = self._live()
        if self._base.files is not None or self._base.state:
            order = {"do": "unpack", "state": self._base.state_in(link.scratch)}
            self._ask(order, self._base.files)
        for number, past in enumerate(self._log, 1):
            answer, _ = self._ask(order_of(past), past.data if past.kind == "write" else None)
            if past.digest and digest_of(*self._outcome(answer)[:3], link.scratch) != past.digest:
                raise self._lose(f"call {number} of {len(self._log)} answered differently when it was repeated")
        if digest and self._ask({"do": "digest"})[0]["digest"] != digest:
            raise self._lose(f"the files came out differently when {len(self._log)} calls were repeated")

    def _lose(self, why: str) -> SessionError:
        """End the session for good; return the error that says why."""
        self._lost = why
        if self._finalizer is not None:
            self._finalizer()
        return SessionError(f"{why}; {_LOST}")

    def _ask(self, order: dict[str, Any], data: bytes | None = None) -> tuple[dict[str, Any], bytes]:
        """Return the keeper's answer and the bytes with it. Raises: WorkerDied; ValueError when it refuses."""
        files = [] if data is None else [answers.file(data)]
        try:
            answer, made = self._live().ask(order, files)
        finally:
            for fd in files:
                os.close(fd)
        content = b""
        for fd in made:
            content = os.pread(fd, os.fstat(fd).st_size, 0)
            os.close(fd)
        if "broken" in answer:
            raise WorkerDied(answer["broken"])
        if "refused" in answer:
            raise ValueError(answer["refused"])
        return answer, content

    def _do(self, order: dict[str, Any], data: bytes | None = None) -> tuple[dict[str, Any], bytes]:
        """Return the answer, from a session that is rebuilt where it was folded or lost. Raises: SessionError."""
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
                self._begin()
        raise SessionError(f"the session was lost {_ATTEMPTS} times in a row; the last error: {trouble}")

    def _call(
        self, kind: Literal["python", "shell"], text: str, wall_s: float | None, cpu_s: float | None
    ) -> CallResult:
        size = len(text.encode("utf-8", "surrogatepass"))
        if kind == "shell" and "\0" in text:
            raise ValueError("a line of the shell holds no NUL")
        if size > MOST_TEXT:
            raise ValueError(f"a call has at most {MOST_TEXT} bytes, this one {size}; use write() for data")
        with self._lock:
            left = self.quota.cpu_s - self.cpu_s
            most = self.limits.lowered(wall_s=wall_s, cpu_s=cpu_s)
            if self.num_calls >= self.quota.calls or left <= 0:
                used = (
                    f"{self.num_calls} calls of {self.quota.calls}, {self.cpu_s:.1f} CPU seconds of {self.quota.cpu_s}"
                )
                return CallResult("cpu_limit" if left <= 0 else "runtime_error", "", "", f"used up: {used}", 0.0, 0.0,
                                  self.level)  # fmt: skip
            self.num_calls += 1
            past = Past(kind, text, wall_s=most.wall_s, cpu_s=min(most.cpu_s, left))
            for _ in range(_KILLS + 1):
                answer, _ = self._do(order_of(past))
                if answer["status"] != signal.SIGKILL or answer["why"] != frames.ENDED:
                    break
                self._begin()  # killed by the kernel or somebody on this machine: again, from before the call
            return self._take(past, answer)

    def _take(self, past: Past, answer: dict[str, Any]) -> CallResult:
        """Remember a call that has ended, and return its result."""
        link = self._live()
        status, out, err, reason = self._outcome(answer)
        self.cpu_s += answer["cpu"]
        digest = digest_of(status, out, err, link.scratch)
        self._log.append(replace(past, digest=digest))
        ended = past.kind == "python" and not answer["alive"]
        if ended or (not answer["alive"] and answer["why"] != frames.ENDED):
            # What is left are files: they are the new begin, since an ended call might not end so again.
            now, files = self._ask({"do": "pack"})
            self._base, self._log = self._base_now(now, files), []
        error = "" if status == "passed" else f"{tail(err)}\n{reason}".strip()
        stdout, stderr = out.decode("utf-8", "replace"), err.decode("utf-8", "replace")
        return CallResult(status, stdout, stderr, error, answer["cpu"], answer["wall"], link.keeper.level, ended)

    def _outcome(self, answer: dict[str, Any]) -> Outcome:
        """Return status, output, errors and reason of a call that has ended."""
        link, cap = self._live(), self.limits.output_kib << 10
        spans = zip(answer["begins"], answer["ends"], strict=True)
        out, err = (link.output(i, begin, min(end, begin + cap)) for i, (begin, end) in enumerate(spans))
        return outcome(answer, out, err, self.limits, self.quota)

    def _base_now(self, answer: dict[str, Any], files: bytes) -> Base:
        return Base(files, general(answer["state"], self._live().scratch))
