"""The process of a session's interpreter, as the keeper halts it, lets it continue, and buries it."""

from __future__ import annotations

import contextlib
import os
import select
import signal

from . import answers
from .makers import Maker


class Interpreter:
    """A Python process of a session that is our child. It is halted unless a call is under way."""

    def __init__(self, maker: Maker, pid: int, pidfd: int, link: int) -> None:
        self.maker, self.pid, self.pidfd, self.link = maker, pid, pidfd, link

    def go_on(self) -> None:
        """Let it run."""
        self._signal(signal.SIGCONT)

    def halt(self) -> bool:
        """Halt it, and wait until all its threads are. False if it is dead."""
        self._signal(signal.SIGSTOP)
        state = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if state is None or state.si_code != os.CLD_STOPPED:
            return False
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG)
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
        ended = select.poll()
        ended.register(self.pidfd, select.POLLIN)
        return bool(ended.poll(0))

    def status(self) -> int:
        """Return the wait status. It must be dead."""
        return answers.wait_status(os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT))

    def bury(self) -> float:
        """End it, if it has not ended; return its CPU seconds."""
        self._signal(signal.SIGKILL)
        _, cpu = self.maker.reap(self.pid)
        os.close(self.link)
        os.close(self.pidfd)
        return cpu

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)
