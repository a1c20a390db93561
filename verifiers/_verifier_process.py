"""Run verifiers of users in processes of their own, which are killed when they take too long.

Whatever their code does, from `sys.exit` to a search that never ends, costs the response that it was asked about, and
nothing else. What they print goes to standard error, up to a limit.
"""

from __future__ import annotations

import atexit
import contextlib
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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from verizero.pipeline.host import child
from verizero.pipeline.host.child import import_path, module_command
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
"""True in such a process, where no further process is needed."""


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


class NotLoaded(NoVerdict):
    """The process cannot load the verifier."""


def score(outside: ExternalVerifier, attempts: Sequence[Attempt]) -> list[Verdict]:
    """Return one verdict per attempt, in order; "verifier_error" where none came."""
    verdicts: list[Verdict] = []
    num_closed, lost_s, size = _current.num_closed, 0.0, len(attempts)
    while len(verdicts) < len(attempts):
        asked, begun = attempts[len(verdicts) : len(verdicts) + size], time.perf_counter()
        try:
            with _process(num_closed) as process:
                for verdict in process.ask(outside, asked):
                    verdicts.append(verdict)
                    lost_s = 0.0
                    begun = time.perf_counter()
        except NoVerdict as exc:
            if _current.num_closed > num_closed and not isinstance(exc, NotLoaded):
                continue
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
    """End the processes. Calls that wait for them return at once, with failures; later ones start others."""
    with _current.lock:
        _current.num_closed += 1
        processes, _current.idle, _current.busy = [*_current.idle, *_current.busy], [], []
    for process in processes:
        process.end()


class _Process:
    """A process, and its threads on this side. One call at a time asks it."""

    def __init__(self, surroundings: tuple[Any, ...]) -> None:
        self.surroundings = surroundings
        """The state of this process that its code could look at; where it differs, another process is started."""
        self.has_ended = False
        self._owner = os.getpid()
        self._answers: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self._dump, path = tempfile.mkstemp()
        os.unlink(path)
        # Without a fixed seed the order of a set of texts, and perhaps a verdict, differs from process to process.
        environ = {"PYTHONHASHSEED": "0"} | os.environ | import_path() | settings.variables()
        self._child = child.start(
            [*module_command("verizero.verifiers._verifier_program"), str(self._dump)],
            env=environ, pass_fds=(self._dump,),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._threads = [threading.Thread(target=act, daemon=True) for act in (self._read, self._show)]
        for thread in self._threads:
            thread.start()
        self._send(sys.path)

    def ask(self, outside: ExternalVerifier, attempts: Sequence[Attempt]) -> Iterator[Verdict]:
        """Yield the verdicts as they come. Raises: NoVerdict."""
        choice = (outside.name, outside.path, outside.base, dict(outside.params), outside.time_s)
        self._send((choice, list(attempts)))
        wait = _Wait(outside, len(attempts))
        while wait.num_left:
            kind, value = self._next(wait)
            if kind == "refused":
                raise NotLoaded(value)
            if kind == "ended":
                raise NoVerdict(self._last_place(outside, value))
            wait.took(kind)
            if kind == "verdict":
                yield Verdict(*value)

    def end(self) -> None:
        """Kill the process and what it started in its group; a process that was forked leaves its parent's alone."""
        if self._owner == os.getpid():
            self.has_ended = True
            child.end(self._child, grace_s=0)

    def _next(self, wait: _Wait) -> tuple[str, Any]:
        while True:
            try:
                return self._answers.get(timeout=wait.seconds())
            except Empty:
                if not wait.is_over:
                    continue
            place = self._last_place(wait.outside, f"no verdict within {wait.limit_s:g} s", asks=True)
            raise NoVerdict(f"{place}; make it faster, or raise time_s of the verifier")

    def _last_place(self, outside: ExternalVerifier, what: str, asks: bool = False) -> str:
        """Return `what`, and the line of the verifier's file at which its process is, or was when it died."""
        if asks:
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
        with contextlib.suppress(OSError):  # the thread that reads learns why it is gone
            self._child.stdin.write(message)
            self._child.stdin.flush()

    def _read(self) -> None:
        """Take the answers until the process ends."""
        with contextlib.suppress(OSError, EOFError, ValueError, pickle.PickleError, AttributeError):
            while True:
                self._answers.put(pickle.load(self._child.stdout))  # type: ignore[arg-type]
        child.end(self._child, grace_s=1.0, first=0)  # it has ended, or has closed its files
        status = self._child.wait()
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        self.has_ended = True
        self._answers.put(("ended", f"the code ended its process ({how})"))

    def _show(self) -> None:
        """Show the first prints, and throw the others away: a process whose prints nobody reads would wait for ever."""
        left = MAX_PRINTED
        with contextlib.suppress(OSError, ValueError):
            while text := os.read(self._child.stderr.fileno(), 65536):  # type: ignore[union-attr]
                shown, left = text[:left], max(0, left - len(text))
                if shown:
                    sys.stderr.write(shown.decode(errors="replace") + ("" if left else "\n(more is not shown)\n"))


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
    """The processes of this one, as many as there were calls at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.idle: list[_Process] = []
        self.busy: list[_Process] = []
        self.num_closed = 0


_current = _Current()


@contextmanager
def _process(num_closed: int) -> Iterator[_Process]:
    """Yield a process that sees what this one does, for one call. Raises: NotLoaded after `num_closed` closings."""
    surroundings = (os.getpid(), os.getcwd(), list(sys.path), dict(os.environ), settings.variables())
    with _current.lock:
        if _current.num_closed > num_closed:
            raise NotLoaded("grading was ended")
        fit = [p for p in _current.idle if p.surroundings == surroundings and not p.has_ended]
        others = [p for p in _current.idle if p not in fit]
        mine = fit.pop() if fit else _Process(surroundings)
        _current.idle = fit
        _current.busy.append(mine)
    for process in others:
        process.end()
    try:
        yield mine
    except BaseException:
        mine.end()  # its answers could still come, to the next call
        raise
    finally:
        with _current.lock:
            if mine in _current.busy:
                _current.busy.remove(mine)
                _current.idle.append(mine)


atexit.register(close)
