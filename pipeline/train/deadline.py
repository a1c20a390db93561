"""What phase this rank is in, on disk for whoever finds it dead; and the deadline that ends one that hangs."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

START_S = 1800.0
"""Reading a large model may take longer than any phase; the start has at least so long."""
SPARE_S = 10.0
"""After the deadline. What else watches gets so much longer, so that one tells why a rank ended: this."""
PAST_DEADLINE = 75
"""Exit status of a rank that was too slow: what failed may work another time."""


@dataclass
class Watch:
    """The watch of this process; off until `start`."""

    file: Path | None = None
    timeout_s: float = 0.0
    phase: str = ""
    limit_s: float = 0.0
    """Of the present phase."""
    deadline: float = 0.0

    def start(self, file: Path, timeout_s: float) -> None:
        """From now on every phase is written to `file`, `rank<r>.phase`, and may take `timeout_s`."""
        self.file, self.timeout_s = file, timeout_s
        self._arm("start", max(START_S, timeout_s))
        threading.Thread(target=self._look, args=(file,), name="deadline", daemon=True).start()

    def begins(self, phase: str) -> None:
        """A phase begins. If no other does within the deadline, every thread's stack is written and the process ends.

        A process that waits in a collective hears no signal handler of Python's, but lets other threads run. For one
        that does not even do that there is a second watch, which runs beside the interpreter.
        """
        self._arm(phase, self.timeout_s)

    def _arm(self, phase: str, timeout_s: float) -> None:
        if self.file is None:
            return
        self.phase, self.limit_s, self.deadline = phase, timeout_s, time.monotonic() + timeout_s
        self._write(phase)
        faulthandler.dump_traceback_later(timeout_s + SPARE_S, exit=True)

    def leave(self, kind: type[BaseException] | None, *rest: object) -> None:
        """What an `ExitStack` calls at its end. After an error the phase and its deadline stay."""
        if kind is None:
            self.stop()

    def stop(self) -> None:
        """No deadline any more."""
        if self.file is not None:
            faulthandler.cancel_dump_traceback_later()
            self._write("end")
            self.file = None

    def _write(self, phase: str) -> None:
        """Whole at every moment: this process may be killed at any, and be read then."""
        assert self.file is not None
        new = self.file.with_suffix(".next")
        new.write_text(phase)
        new.replace(self.file)

    def _look(self, file: Path) -> None:
        while self.file is file:
            left = self.deadline - time.monotonic()
            if left <= 0:
                self._end(file)
            time.sleep(min(max(left, 0.0), 1.0))

    def _end(self, file: Path) -> None:
        """End this process, and say in the last line that it writes why, and what to do."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        faulthandler.dump_traceback(all_threads=True)
        said = (
            f"verizero: rank {file.stem.removeprefix('rank')} was not done with {self.phase!r} within {self.limit_s:g} "
            f"s (launch.phase_timeout_s={self.timeout_s:g}): a rank or the network does not answer, or there is more "
            "to do than that. See the other ranks' logs, mend the network, or raise launch.phase_timeout_s; the same "
            "command goes on from the last checkpoint\n"
        )
        os.write(sys.stderr.fileno(), said.encode())
        os._exit(PAST_DEADLINE)


WATCH = Watch()
"""Of this process, of which there is one."""
