"""Run verifiers of users in a process of their own, which is killed when it takes too long.

Whatever their code does, from `sys.exit` to a search that never ends, costs the response that it was asked about, and
nothing else. What they print goes to standard error, up to a limit.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from verizero.pipeline import child
from verizero.pipeline.own_programs import import_path, module_command
from verizero.pipeline.types import Attempt, Verdict
from verizero.sandbox import settings

TIME_S = 30.0
"""Default of the seconds that a user's verifier may take for a response."""
START_S = 600.0
"""Seconds for loading its file, which may import large libraries."""
SILENCE_S = 10.0
"""Seconds of waiting after which a message is shown."""
GIVE_UP = 3
"""After this many timeouts in a row, the rest of a call is not graded."""
MAX_PRINTED = 16384
"""Maximum of bytes of a process's prints that are shown."""
DUMP_S = 2.0
"""Seconds for a process to write its stack before it is killed."""
FRAME = re.compile(r'^  File "(.*)", line (\d+)', re.MULTILINE)

is_inside = False
"""True in that process, where no further process is needed."""


@dataclass(frozen=True, slots=True)
class ExternalVerifier:
    """A user's verifier, in a form that another process can load."""

    name: str | None
    path: str | None
    """"file.py:function", absolute."""
    base: Path | None
    params: Mapping[str, Any]
    time_s: float
    file: str
    line: int
    """File and line of its function."""
    is_batch: bool

    @property
    def label(self) -> str:
        """The verifier's name in messages."""
        return f"verifier {self.name or self.path!r}"


class NoVerdict(Exception):
    """There is no verdict; the text says why."""


class Interrupted(NoVerdict):
    """The process was killed because of another call."""


class NotLoaded(NoVerdict):
    """The process cannot load the verifier."""


def score(outside: ExternalVerifier, attempts: Sequence[Attempt]) -> list[Verdict]:
    """Return one verdict per attempt, in order; "verifier_error" where none came."""
    verdicts: list[Verdict] = []
    num_closed, lost_s, size = _current.num_closed, 0.0, len(attempts)
    while len(verdicts) < len(attempts):
        asked, begun = attempts[len(verdicts) : len(verdicts) + size], time.perf_counter()
        try:
            if _current.num_closed > num_closed:
                raise NotLoaded("grading was ended")
            for verdict in _process().ask(outside, asked):
                verdicts.append(verdict)
                lost_s = 0.0
                begun = time.perf_counter()
        except Interrupted:
            continue
        except NoVerdict as exc:
            if outside.is_batch and len(asked) > 1 and not isinstance(exc, NotLoaded):
                size = 1  # one of them may be to blame, which costs no other
                continue
            seconds = time.perf_counter() - begun
            lost_s += seconds
            verdicts.append(Verdict("verifier_error", reason=str(exc), seconds=seconds))
            if isinstance(exc, NotLoaded) or lost_s >= GIVE_UP * outside.time_s:
                rest = Verdict("verifier_error", reason=f"not asked about after others: {exc}")
                verdicts += [rest] * (len(attempts) - len(verdicts))
    return verdicts


def close() -> None:
    """End the process. Calls that wait for it return at once, with failures; later ones start another."""
    with _current.lock:
        _current.num_closed += 1
        process, _current.process = _current.process, None
    if process is not None and process.owner == os.getpid():
        process.end("grading was ended")


class _Process:
    """The process, its threads on this side, and the calls that wait for its answers."""

    def __init__(self, surroundings: tuple[Any, ...]) -> None:
        self.surroundings = surroundings
        """The state of this process that its code could look at; where it differs, another process is started."""
        self.owner = os.getpid()
        self.why = ""
        """The reason why it ended; empty while it lives."""
        self._is_dumping = False
        """True once its stack is asked for. A stack that is read while threads run may end the process (SIGSEGV)."""
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, SimpleQueue[tuple[str, Any]]] = {}
        self._dump, path = tempfile.mkstemp()
        os.unlink(path)
        # Without a fixed seed the order of a set of texts, and perhaps a verdict, differs from process to process.
        environ = {"PYTHONHASHSEED": "0"} | os.environ | import_path() | settings.variables()
        self._child = child.start(
            [*module_command("verizero.verifiers._wall_process"), str(self._dump)],
            env=environ, pass_fds=(self._dump,),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._threads = [threading.Thread(target=act, daemon=True) for act in (self._read, self._show)]
        for thread in self._threads:
            thread.start()
        self._send(sys.path)

    def ask(self, outside: ExternalVerifier, attempts: Sequence[Attempt]) -> Iterator[Verdict]:
        """Yield the verdicts as they come. Raises: Lost."""
        mine: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        number = next(self._numbers)
        with self._lock:
            self._waiting[number] = mine
        try:
            if self.why:
                raise Interrupted(self.why)
            choice = (outside.name, outside.path, outside.base, dict(outside.params), outside.time_s)
            self._send((number, choice, list(attempts)))
            wait = _Wait(outside, len(attempts))
            while wait.num_left:
                kind, value = self._next(mine, wait)
                if kind == "refused":
                    raise NotLoaded(value)
                if kind == "disturbed":
                    raise Interrupted(value)
                if kind == "ended":
                    raise NoVerdict(self._last_place(outside, value))
                wait.took(kind)
                if kind == "verdict":
                    yield Verdict(*value)
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def end(self, why: str, kind: str = "disturbed") -> None:
        """Kill the process and what it started in its group; calls that wait learn why."""
        self._lose(why, kind)
        child.end(self._child, grace_s=0)

    def _next(self, mine: SimpleQueue[tuple[str, Any]], wait: _Wait) -> tuple[str, Any]:
        while True:
            try:
                return mine.get(timeout=wait.seconds())
            except Empty:
                if not wait.is_over:
                    continue
            place = self._last_place(wait.outside, f"no verdict within {wait.limit_s:g} s", asks=True)
            self.end(f"{wait.outside.label} took too long")
            raise NoVerdict(f"{place}; make it faster, or raise time_s of the verifier")

    def _last_place(self, outside: ExternalVerifier, what: str, asks: bool = False) -> str:
        """Return `what`, and the line of the verifier's file at which its process is, or was when it died."""
        if asks:
            self._is_dumping = True
            with contextlib.suppress(ProcessLookupError):
                self._child.send_signal(signal.SIGUSR1)
        end = time.monotonic() + DUMP_S
        while True:
            written = os.pread(self._dump, 1 << 20, 0).decode(errors="replace")
            lines = [line for file, line in FRAME.findall(written) if file == outside.file]
            if lines or not asks or time.monotonic() > end:
                return f"{what}, at {outside.file}:{lines[0] if lines else outside.line}"
            time.sleep(0.02)

    def _send(self, request: Any) -> None:
        assert self._child.stdin is not None
        try:
            message = pickle.dumps(request)
        except Exception as exc:
            raise NotLoaded(f"a response or reference cannot be sent to another process: {exc}") from exc
        with self._writing, contextlib.suppress(OSError):  # the thread that reads learns why it is gone
            self._child.stdin.write(message)
            self._child.stdin.flush()

    def _read(self) -> None:
        """Give each answer to the call that waits for it, until the process ends."""
        with contextlib.suppress(OSError, EOFError, ValueError, pickle.PickleError, AttributeError):
            while True:
                number, kind, value = pickle.load(self._child.stdout)  # type: ignore[arg-type]
                with self._lock:
                    waits = self._waiting.get(number)
                if waits is not None:
                    waits.put((kind, value))
        child.end(self._child, grace_s=1.0, first=0)  # it has ended, or has closed its files
        status = self._child.wait()
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        self._lose(f"the code ended its process ({how})", "disturbed" if self._is_dumping else "ended")

    def _show(self) -> None:
        """Show the first prints, and throw the others away: a process whose prints nobody reads would wait for ever."""
        left = MAX_PRINTED
        with contextlib.suppress(OSError, ValueError):
            while text := os.read(self._child.stderr.fileno(), 65536):  # type: ignore[union-attr]
                shown, left = text[:left], max(0, left - len(text))
                if shown:
                    sys.stderr.write(shown.decode(errors="replace") + ("" if left else "\n(more is not shown)\n"))

    def _lose(self, why: str, kind: str) -> None:
        with self._lock:
            if self.why:
                return
            self.why = why
            waiting = list(self._waiting.values())
        for waits in waiting:
            waits.put((kind, why))


class _Wait:
    """The time that a call may still wait, and what a person is told meanwhile."""

    def __init__(self, outside: ExternalVerifier, num: int) -> None:
        self.outside, self.num_left, self._num = outside, num, num
        self.limit_s = START_S
        self._since = self._silent_since = time.monotonic()

    @property
    def is_over(self) -> bool:
        """True if the next answer is late; says what is waited for if a person was told nothing for long."""
        now = time.monotonic()
        if now - self._silent_since >= SILENCE_S:
            self._silent_since = now
            what = f"{self._num - self.num_left} of {self._num} responses graded"
            if self.limit_s == START_S:
                what = "loading"
            print(
                f"{self.outside.label}: {what}, waiting for {now - self._since:.0f} s, {self.limit_s:g} s at most",
                file=sys.stderr,
                flush=True,
            )
        return now - self._since >= self.limit_s

    def seconds(self) -> float:
        """Return the seconds until something must be done."""
        now = time.monotonic()
        return max(0.0, min(self._since + self.limit_s, self._silent_since + SILENCE_S) - now)

    def took(self, kind: str) -> None:
        """Begin to wait for the next answer."""
        self.limit_s, self._since = self.outside.time_s, time.monotonic()
        self.num_left -= kind == "verdict"


class _Current:
    """The process of this one, if there is one."""

    lock = threading.Lock()
    process: _Process | None = None
    num_closed = 0


_current = _Current()


def _process() -> _Process:
    """Return the process, a new one if there is none, or none that sees what this process sees."""
    surroundings = (os.getpid(), os.getcwd(), list(sys.path), dict(os.environ), settings.variables())
    with _current.lock:
        before = _current.process
        if before is not None and not before.why and before.surroundings == surroundings:
            return before
        made = _current.process = _Process(surroundings)
    if before is not None and before.owner == os.getpid():  # a process that was forked must not end its parent's
        before.end("another was started")
    return made


atexit.register(close)
