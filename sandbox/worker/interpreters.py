"""The interpreter of a session: the keeper resumes, halts and kills its process."""

from __future__ import annotations

import contextlib
import os
import select
import signal

from . import answers
from .program_forkers import ProgramForker


class Interpreter:
    """A Python process of a session, which is our child. It is halted except during a call."""

    def __init__(self, forker: ProgramForker, pid: int, pidfd: int, link: int) -> None:
        self.forker, self.pid, self.pidfd, self.link = forker, pid, pidfd, link

    def resume(self) -> None:
        """Let the process run."""
        self._signal(signal.SIGCONT)

    def halt(self) -> bool:
        """Halt the process, and wait until all of its threads have stopped. False if it is dead."""
        self._signal(signal.SIGSTOP)
        state = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if state is None or state.si_code != os.CLD_STOPPED:
            return False
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG)
        with contextlib.suppress(OSError):  # drop messages that the program has sent by itself
            while os.read(self.link, 4096):
                pass
        return True

    def read_message(self) -> bytes | None:
        """Return its message: empty if its end is closed, None if there is none.

        There is none after a stale event, of a closed descriptor whose number was reused.
        """
        try:
            return os.read(self.link, 4096)
        except BlockingIOError:
            return None
        except ConnectionError:
            return b""

    @property
    def has_ended(self) -> bool:
        """True if the process is dead."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def status(self) -> int:
        """Return the wait status of the dead process."""
        return answers.wait_status(os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT))

    def kill_and_reap(self) -> float:
        """Kill the process if it lives, wait for it, and return its CPU seconds."""
        self._signal(signal.SIGKILL)
        _, cpu = self.forker.reap(self.pid)
        os.close(self.link)
        os.close(self.pidfd)
        return cpu

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)
