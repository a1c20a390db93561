"""Run a program that must not outlive another process: `python -m pipeline.rollout.child_process PID PROGRAM …`.

The program and all that it starts are one process group. When it ends, or the process PID dies by whatever signal, or
this one is asked to end, the group is asked to end and then killed. Standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import FrameType

POLL_S = 0.2
GRACE_S = 5.0


def main(arguments: list[str]) -> int:
    """The program's exit status; 0 where it was ended."""
    owner, command = int(arguments[0]), arguments[1:]
    asked: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        asked.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, remember)
    if os.getpgrp() != os.getpid():
        os.setsid()
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    while program.poll() is None and not asked and os.getppid() == owner:
        time.sleep(POLL_S)
    status = program.poll()
    end_group(program)
    return 0 if status is None else status


def end_group(program: subprocess.Popen[bytes]) -> None:
    """Ask the group to end, then kill what is left of it; this process is among it and ends last."""
    os.killpg(0, signal.SIGTERM)
    until = time.monotonic() + GRACE_S
    while program.poll() is None and time.monotonic() < until:
        time.sleep(POLL_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
