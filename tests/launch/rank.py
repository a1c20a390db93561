"""`verizero` with fuses. FUSE="1|round 1 step 1: update|3|kill": the third time that rank 1 begins the phase, it dies.

In place of "kill": "hang" waits for ever, "stop" is stopped by a signal, "cut" pulls the cable of its machine's link
CABLE and continues, "outage" plugs it in again a second later. Besides a run's phases there are "start" and "end",
"<phase>, unnamed" where a folder is about to get its name, and "<phase>, half" where the first of several files of
weights or moments was written. The phase of other threads than the main one is "background". Several fuses are
separated by ";".
"""

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import safetensors.torch

from verizero.pipeline.cli import main
from verizero.pipeline.train import deadline

OUTAGE_S = 1.0


class FusedWatch(deadline.Watch):
    """Burns down as phases begin."""

    seen: dict[int, int]
    """How often each fuse's phase has begun."""

    def _arm(self, phase: str, timeout_s: float) -> None:
        super()._arm(phase, timeout_s)
        self.burn(phase)

    def stop(self) -> None:
        super().stop()
        self.burn("end")

    def burn(self, phase: str) -> None:
        """Act, where that is the phase and the time."""
        for number, fuse in enumerate(os.environ["FUSE"].split(";")):
            rank, wanted, times, act = fuse.split("|")
            if os.environ.get("RANK") == rank and phase == wanted:
                self.seen[number] = self.seen.get(number, 0) + 1
                if self.seen[number] == int(times):
                    ACTS[act]()


def set_cable(state: str) -> None:
    subprocess.run(["ip", "link", "set", os.environ["CABLE"], state], check=True)


def outage() -> None:
    set_cable("down")
    threading.Timer(OUTAGE_S, set_cable, ["up"]).start()


ACTS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "hang": lambda: time.sleep(3600),
    "cut": lambda: set_cable("down"),
    "outage": outage,
}


def light(fused: FusedWatch) -> None:
    """Let the fuse burn at renames too, and behind each file of weights or moments."""
    plain, save_file = os.rename, safetensors.torch.save_file

    def phase() -> str:
        return fused.phase if threading.current_thread() is threading.main_thread() else "background"

    def rename(*arguments: Any) -> None:
        fused.burn(f"{phase()}, unnamed")
        plain(*arguments)

    def save_and_burn(*arguments: Any, **named: Any) -> None:
        save_file(*arguments, **named)
        fused.burn(f"{phase()}, half")

    os.rename, safetensors.torch.save_file = rename, save_and_burn


if __name__ == "__main__":
    if "FUSE" in os.environ:
        deadline.WATCH.__class__ = FusedWatch
        assert isinstance(deadline.WATCH, FusedWatch)
        deadline.WATCH.seen = {}
        light(deadline.WATCH)
    sys.exit(main())
