"""The process of a session's interpreter, as the keeper halts it, lets it continue, and buries it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import Protocol

from . import answers, clocks, process_flood
from .makers import Maker

_STATE, _THREADS, _EXIT_CODE = 0, 17, 49
"""Fields of /proc/PID/stat behind the name."""
_PAUSE_S = 0.00002


class Interpreter:
    """A Python process of a session that is our child. It is halted unless a call is under way."""

    def __init__(self, maker: Maker, pid: int, pidfd: int, link: int) -> None:
        self.maker, self.pid, self.pidfd, self.link = maker, pid, pidfd, link
        self.is_halted = False

    def kill(self) -> None:
        """Begin to end it."""
        self._signal(signal.SIGKILL)

    def go_on(self) -> None:
        """Let it run."""
        if self.is_halted:
            self.is_halted = False
            self._signal(signal.SIGCONT)

    def halt(self) -> bool:
        """Halt it with all its threads. False if it is dead."""
        self._signal(signal.SIGSTOP)
        if not self.is_stopped():
            return False
        self.is_halted = True
        with contextlib.suppress(OSError):  # ends that were forged ahead
            while os.read(self.link, 4096):
                pass
        return True

    def heard(self) -> bytes | None:
        """Return what it has said: nothing if its end is closed, and None if it has said nothing.

        The last is so if the event was of another, whose descriptor had this number a moment ago.
        """
        try:
            return os.read(self.link, 4096)
        except BlockingIOError:
            return None
        except ConnectionError:
            return b""

    @property
    def has_ended(self) -> bool:
        """True if it is dead."""
        return self.ends_within(0)

    def ends_within(self, milliseconds: int | None) -> bool:
        """Wait until it is dead, at most for that time; without a time, as long as it takes. True if it is dead."""
        ended = select.poll()
        ended.register(self.pidfd, select.POLLIN)
        return bool(ended.poll(milliseconds))

    def status(self) -> int:
        """Return the wait status. It must be dead."""
        return answers.wait_status(os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT))

    def bury(self) -> float:
        """End it, if it has not ended; return its CPU seconds."""
        self.kill()
        _, cpu = self.maker.reap(self.pid)
        self.close()
        return cpu

    def close(self) -> None:
        """Close its descriptors."""
        os.close(self.link)
        os.close(self.pidfd)

    def is_stopped(self) -> bool:
        """Wait until all threads are halted, which must not have been heard of yet. False if it is dead."""
        state = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if state is None or state.si_code != os.CLD_STOPPED:
            return False
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG)
        return True

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)


class Parent(Protocol):
    """The process that a copy was made of. It never runs, and buries its dead when it is told to."""

    depth: int

    @property
    def pid(self) -> int:
        """The process."""

    def leave(self, number: int) -> None:
        """Forget the copy that the parent knows by this number, which is dead."""


class Copy(Interpreter):
    """A copy of another interpreter. It is no child of ours, so we learn of it from /proc and by its descriptor."""

    def __init__(self, maker: Maker, pid: int, pidfd: int, link: int, parent: tuple[Parent, int]) -> None:
        super().__init__(maker, pid, pidfd, link)
        self.parent, self.number = parent
        self.is_halted = True

    def status(self) -> int:
        """Return the wait status; that of a kill if its parent has died with it."""
        fields = self._fields()
        return int(fields[_EXIT_CODE]) if len(fields) > _EXIT_CODE else int(signal.SIGKILL)

    def bury(self) -> float:
        """End it, if it has not ended; return its CPU seconds."""
        self.kill()
        self.ends_within(None)
        cpu = clocks.cpu_clock(self.pid)
        with contextlib.suppress(ChildProcessError):  # we are told of its end only if we trace it
            os.waitpid(self.pid, 0)
        self.close()
        self.parent.leave(self.number)
        return cpu

    def is_stopped(self) -> bool:
        """Wait until all threads are halted. False if it is dead."""
        while True:
            fields = self._fields()
            if len(fields) <= _THREADS or fields[_STATE] in (b"Z", b"X"):
                return False
            if fields[_STATE] == b"T" and (fields[_THREADS] == b"1" or self._all_stopped()):
                return True
            time.sleep(_PAUSE_S)

    def _all_stopped(self) -> bool:
        try:
            folder = os.open(f"{self.pid}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.maker.cell.proc)
        except OSError:  # it has died since
            return False
        try:
            stats = [process_flood.read(folder, f"{task}/stat") for task in os.listdir(folder)]
        finally:
            os.close(folder)
        return all(stat.rpartition(b")")[2].split()[:1] in ([b"T"], []) for stat in stats)

    def _fields(self) -> list[bytes]:
        return process_flood.fields_of(self.maker.cell.proc, self.pid)
