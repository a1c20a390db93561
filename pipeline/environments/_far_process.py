"""A far side on pipes: a process that plays episodes. Each request is a line of JSON; any thread may send one."""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import os
import select
import subprocess
import threading
import time
from queue import Empty, SimpleQueue
from typing import Any

from verizero.pipeline.errors import EnvironmentFailed
from verizero.pipeline.host import child

MAX_LINE = 64 * 2**20
START_S = 120.0
"""Seconds until a new process is ready."""
END_S = 2.0
"""Seconds that a process has to close its episodes before it is killed."""


class ConnectionLost(EnvironmentFailed):
    """The far side may never answer again for this episode."""


class FarProcess:
    """A process with episodes, two threads that read its output, and the requests that wait for an answer."""

    def __init__(self, command: list[str], environ: dict[str, str], step_s: float) -> None:
        """Start the process and wait until it is ready. Raises: EnvironmentFailed with the reason if it fails."""
        self._step_s = step_s
        self._numbers = itertools.count(1)
        self._waiting: dict[int, SimpleQueue[dict[str, Any]]] = {0: SimpleQueue()}
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._last_errors: collections.deque[str] = collections.deque(maxlen=20)
        self._gone = ""
        self._retired = self._is_ended = False
        self.num_open = 0
        ready = self._waiting[0]
        try:
            self._process = child.start(
                command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as exc:
            raise EnvironmentFailed(f"{command[0]} cannot be started: {exc.strerror or exc}") from exc
        assert self._process.stdin is not None
        self._into = self._process.stdin.fileno()
        os.set_blocking(self._into, False)
        self._threads = [threading.Thread(target=act, daemon=True) for act in (self._read, self._listen)]
        for thread in self._threads:
            thread.start()
        try:
            self._result(ready, time.monotonic() + START_S, START_S, "be ready")
        except EnvironmentFailed:
            self.end()
            raise

    @property
    def is_over(self) -> bool:
        """True if the process has ended."""
        return bool(self._gone)

    @property
    def is_usable(self) -> bool:
        """True if new episodes may begin in this process: it runs, and no request to it got stuck."""
        return not self._gone and not self._retired

    def enter(self) -> None:
        """Count an episode as open."""
        with self._lock:
            self.num_open += 1

    def leave(self) -> None:
        """Count an episode as ended. If a request got stuck, the process is ended with its last episode."""
        with self._lock:
            self.num_open -= 1
            is_last = self._retired and self.num_open == 0
        if is_last:
            # Its other requests are stuck too, so there is nothing to wait for.
            self.end(0.0)

    def ask(self, request: dict[str, Any]) -> Any:
        """Return the value of the answer. Raises: EnvironmentFailed."""
        until = time.monotonic() + self._step_s
        answers: SimpleQueue[dict[str, Any]] = SimpleQueue()
        number = next(self._numbers)
        line = json.dumps({"id": number, **request}).encode() + b"\n"
        with self._lock:
            if self._gone:
                raise ConnectionLost(self._gone)
            self._waiting[number] = answers
        try:
            self._write(line, until)
            return self._result(answers, until, self._step_s, request["call"])
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def end(self, grace_s: float = END_S) -> None:
        """End the process and what it started. Episodes that are open here fail, and have `grace_s` to close."""
        with self._lock:
            if self._is_ended:
                return
            self._is_ended = True
        self._lose("its process was ended")
        assert self._process.stdin is not None
        with self._writing, contextlib.suppress(OSError):
            self._process.stdin.close()
        self._threads[0].join(grace_s)
        child.end(self._process, grace_s=0)
        for thread in self._threads:
            thread.join(END_S)
        child.close_pipes(self._process)

    def _result(self, answers: SimpleQueue[dict[str, Any]], until: float, limit_s: float, call: str) -> Any:
        try:
            answer = answers.get(timeout=max(0.0, until - time.monotonic()))
        except Empty:
            self._retired = True
            raise ConnectionLost(f"took more than {limit_s:g} s to {call}") from None
        if "lost" in answer:
            raise ConnectionLost(answer["lost"])
        if "error" in answer:
            raise EnvironmentFailed(str(answer["error"]))
        return answer.get("value")

    def _write(self, line: bytes, until: float) -> None:
        """Write a line whole. Raises: ConnectionLost if the other side does not read."""
        if not self._writing.acquire(timeout=max(0.0, until - time.monotonic())):
            self._retired = True
            raise ConnectionLost("its process does not read")
        try:
            rest = memoryview(line)
            while rest:
                left = until - time.monotonic()
                if left <= 0 or not select.select([], [self._into], [], left)[1]:
                    # Half a line was written: the next request would not be readable.
                    self._process.kill()
                    raise ConnectionLost("its process does not read")
                rest = rest[os.write(self._into, rest) :]
        except (OSError, ValueError) as exc:
            # The reading thread is about to find out why.
            self._threads[0].join(END_S)
            raise ConnectionLost(self._gone or f"its process is gone: {exc}") from exc
        finally:
            self._writing.release()

    def _read(self) -> None:
        """Read answers until the last, and give each to the thread that waits for it."""
        assert self._process.stdout is not None
        reason = ""
        for line in iter(lambda: self._process.stdout.readline(MAX_LINE), b""):  # type: ignore[union-attr]
            try:
                answer = json.loads(line)
                number = answer["id"]
                if not {"value", "error"} & answer.keys():
                    raise ValueError("neither value nor error")
            except (ValueError, TypeError, KeyError, AttributeError):
                reason = f"its process wrote a line that is no answer: {line[:80]!r}"
                self._process.kill()
                break
            with self._lock:
                waits = self._waiting.get(number)
            if waits is not None:
                waits.put(answer)
        self._threads[1].join(END_S)
        errors = "; ".join(w for w in self._last_errors if w)[-500:]
        self._lose(reason or "its process ended" + (f"; it wrote: {errors}" if errors else ""))
        if not self._is_ended:
            child.end(self._process, grace_s=0)

    def _listen(self) -> None:
        """Read standard error, and keep its last lines."""
        assert self._process.stderr is not None
        for line in iter(lambda: self._process.stderr.readline(4096), b""):  # type: ignore[union-attr]
            self._last_errors.append(line.decode("utf-8", "replace").strip())

    def _lose(self, reason: str) -> None:
        with self._lock:
            self._gone = self._gone or reason
            waiting = list(self._waiting.values())
        for waits in waiting:
            waits.put({"lost": self._gone})
