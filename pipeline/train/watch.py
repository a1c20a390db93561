"""What phase this rank is in, on disk for whoever finds it dead; and the deadline that ends one that hangs."""

from __future__ import annotations

import faulthandler
from dataclasses import dataclass
from pathlib import Path

START_S = 1800.0
"""Reading a large model may take longer than any phase; the start has at least so long."""


@dataclass
class Watch:
    """The watch of this process; off until `start`."""

    file: Path | None = None
    timeout_s: float = 0.0

    def start(self, file: Path, timeout_s: float) -> None:
        """From now on every phase is written to `file` and may take `timeout_s`."""
        self.file, self.timeout_s = file, timeout_s
        self._arm("start", max(START_S, timeout_s))

    def begins(self, phase: str) -> None:
        """A phase begins. If no other does within the deadline, every thread's stack is written and the process ends.

        A process that waits in a collective hears no signal handler of Python's; this runs beside the interpreter.
        """
        self._arm(phase, self.timeout_s)

    def _arm(self, phase: str, timeout_s: float) -> None:
        if self.file is None:
            return
        self.file.write_text(phase)
        faulthandler.dump_traceback_later(timeout_s, exit=True)

    def stop(self) -> None:
        """No deadline any more."""
        if self.file is not None:
            faulthandler.cancel_dump_traceback_later()
            self.file.write_text("end")
            self.file = None


WATCH = Watch()
"""Of this process, of which there is one."""
