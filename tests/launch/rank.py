"""`verizero` with a fuse. FUSE="1|round 1 step 1: update|3|kill": the third time that rank 1 begins the phase, it dies.

In place of "kill": "hang" waits for ever, "stop" is stopped by a signal, "cut" pulls the cable of its machine's link
CABLE and goes on. In the phase "<phase>, unnamed" a folder is about to get its name.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

from pipeline.cli import main
from pipeline.train import watch


class FusedWatch(watch.Watch):
    """Burns down as phases begin."""

    def begins(self, phase: str) -> None:
        super().begins(phase)
        self.burn(phase)

    def burn(self, phase: str) -> None:
        """Act, where that is the phase and the time."""
        rank, wanted, number, act = os.environ["FUSE"].split("|")
        if os.environ.get("RANK") != rank or phase != wanted:
            return
        self.left = getattr(self, "left", int(number)) - 1
        if self.left == 0:
            ACTS[act]()


ACTS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "hang": lambda: time.sleep(3600),
    "cut": lambda: subprocess.run(["ip", "link", "set", os.environ["CABLE"], "down"], check=True),
}


def light(fused: FusedWatch) -> None:
    """Let the fuse burn at renames too."""
    plain = os.rename

    def rename(*arguments: Any) -> None:
        fused.burn(f"{fused.phase}, unnamed")
        plain(*arguments)

    os.rename = rename


if __name__ == "__main__":
    if "FUSE" in os.environ:
        watch.WATCH.__class__ = FusedWatch
        assert isinstance(watch.WATCH, FusedWatch)
        light(watch.WATCH)
    sys.exit(main())
