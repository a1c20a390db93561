"""A watchdog in each rank: it writes the present phase to disk, and ends the process at the phase's deadline."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

START_S = 1800.0
"""The start may take at least so many seconds: to read a large model may take longer than any phase."""
SPARE_S = 10.0
"""Seconds that other watchdogs wait past the deadline, so that this one reports first."""
PAST_DEADLINE = 75
"""Exit status of a rank that was too slow. It is EX_TEMPFAIL of sysexits.h: the same command may work another time."""


@dataclass
class Watch:
    """The watchdog of this process; off until `start`."""

    file: Path | None = None
    timeout_s: float = 0.0
    phase: str = ""
    limit_s: float = 0.0
    """Seconds that the present phase may take."""
    deadline: float = 0.0

    def start(self, file: Path, timeout_s: float) -> None:
        """Write every phase from now on to `file`, `rank<r>.phase`, and allow it `timeout_s`."""
        self.file, self.timeout_s = file, timeout_s
        self._arm("start", max(START_S, timeout_s))
        threading.Thread(target=self._look, args=(file,), name="deadline", daemon=True).start()

    def begins(self, phase: str) -> None:
        """Begin a phase. If no other begins before its deadline, write all stacks and end the process."""
        self._arm(phase, self.timeout_s)

    def _arm(self, phase: str, timeout_s: float) -> None:
        if self.file is None:
            return
        self.phase, self.limit_s, self.deadline = phase, timeout_s, time.monotonic() + timeout_s
        self._write(phase)
        # A process that waits in a collective runs none of Python's signal handlers, but lets other threads run: hence
        # a thread. For a process in which no thread runs, faulthandler has a timer outside the interpreter.
        faulthandler.dump_traceback_later(timeout_s + SPARE_S, exit=True)

    def leave(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Stop at the end of an `ExitStack`; after an error the phase and its deadline stay."""
        if kind is None:
            self.stop()

    def stop(self) -> None:
        """Stop watching: there is no deadline any more."""
        if self.file is not None:
            faulthandler.cancel_dump_traceback_later()
            self._write("end")
            self.file = None

    def _write(self, phase: str) -> None:
        # By a rename, for the process may be killed at any moment and its file be read then. Without a sync to disk,
        # because it is read on the same machine and a phase may take a millisecond.
        assert self.file is not None
        new = self.file.with_suffix(".next")
        new.write_text(phase)
        new.replace(self.file)

    def _look(self, file: Path) -> None:
        while self.file is file:  # until `stop`
            left = self.deadline - time.monotonic()
            if left <= 0:
                self._end(file)
            time.sleep(min(max(left, 0.0), 1.0))  # the deadline moves at each phase

    def _end(self, file: Path) -> None:
        """End this process; its last line says why, and what to do."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        faulthandler.dump_traceback(all_threads=True)
        message = (
            f"verizero: rank {file.stem.removeprefix('rank')} was not done with {self.phase!r} within {self.limit_s:g} "
            f"s (launch.phase_timeout_s={self.timeout_s:g}): another rank or the network does not answer, or the phase "
            "has more to do. See the other ranks' logs, check the network between the hosts, or raise "
            "launch.phase_timeout_s; the same command continues from the last checkpoint\n"
        )
        os.write(sys.stderr.fileno(), message.encode())  # not through `sys.stderr`: another thread may hold its lock
        os._exit(PAST_DEADLINE)


WATCH = Watch()
"""This process's watchdog."""
