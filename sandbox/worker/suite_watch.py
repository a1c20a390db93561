"""Watch the program of a suite, while another process runs its tests."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

from . import frames, walls
from .watching import RunLimits, Watch


class SuiteWatch:
    """The watch over the second process of a suite. It is not waited for: the tests notice its end by their pipe."""

    def __init__(self, jail: walls.Jail, pid: int, order: frames.Order, is_full: Callable[[], bool]) -> None:
        limits = RunLimits(order.wall_s, order.cpu_s, order.memory_mib, order.output_kib, order.processes)
        self.pid, self.watch = pid, Watch(pid, limits, jail, is_full, ())
        self.wall_s = 0.0
        self.is_left_over = False
        """True if the program was still alive when the tests had ended."""

    @property
    def next_look(self) -> float:
        """The time of the next look, as of the monotonic clock."""
        return self.watch.next_look

    @property
    def why(self) -> int:
        """The limit that the program has reached, ENDED for none."""
        return frames.LEFT_OVER if self.is_left_over and self.watch.why == frames.ENDED else self.watch.why

    def look(self) -> None:
        """Kill the program if it is time to look, and it has reached a limit."""
        if self.watch.next_look <= time.monotonic():
            with contextlib.suppress(ProcessLookupError):
                self.watch.look()

    def end(self) -> None:
        """Kill the program: the tests have ended."""
        self.wall_s = time.monotonic() - self.watch.start
        with contextlib.suppress(ProcessLookupError):
            self.is_left_over = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
            os.kill(self.pid, signal.SIGKILL)
