"""`verizero` with a fuse. FUSE="1 update 3 kill": the third time that rank 1 begins the phase, it kills itself.

"hang" in place of "kill": it waits for ever, as for a rank that never answers.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from pipeline.cli import main
from pipeline.train import watch


class FusedWatch(watch.Watch):
    """Burns down as phases begin."""

    def begins(self, phase: str) -> None:
        super().begins(phase)
        rank, wanted, number, act = os.environ["FUSE"].split()
        if os.environ.get("RANK") != rank or not phase.endswith(wanted):
            return
        self.left = getattr(self, "left", int(number)) - 1
        if self.left == 0 and act == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.left == 0:
            time.sleep(3600)


if __name__ == "__main__":
    if "FUSE" in os.environ:
        watch.WATCH.__class__ = FusedWatch
    sys.exit(main())
