"""Run a program that must not outlive another process: `python child_process.py [LIMITS] PID PROGRAM …`.

The program and all that it starts are one process group. When the program ends, when the process PID dies by whatever
signal, or when this process gets SIGTERM, the group gets SIGTERM and then SIGKILL. Standard library only.
Limits of each of its processes: --cpu-s=SECONDS, --memory-mib=MEBIBYTES.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from types import FrameType

POLL_S = 0.2
GRACE_S = 5.0


def main(arguments: list[str]) -> int:
    """Return the program's exit status; 0 if this process ended it."""
    options = {}
    while arguments[0].startswith("--"):
        name, _, options[name] = arguments.pop(0).partition("=")
    owner, command = int(arguments[0]), arguments[1:]
    signals: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        signals.append(number)

    # Before the program starts, so that a signal that comes in between is remembered too.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, remember)
    # Signals to the own group must never reach the caller's.
    if os.getpgrp() != os.getpid():
        os.setsid()
    # This process has one thread, so a function may run between fork and exec.
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=lambda: limit(options))
    # A process whose parent died is given another: no signal tells of it, so the parent is looked at.
    while program.poll() is None and not signals and os.getppid() == owner:
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(POLL_S)
    status = program.poll()
    if "--status" in options and status is not None:
        # This process dies with the group, so its own status tells nothing.
        with open(options["--status"], "w") as file:
            file.write(str(status))
    end_group(program)
    return 0 if status is None else status


def limit(options: dict[str, str]) -> None:
    """Set the limits of this process, which its children inherit."""
    if (seconds := int(options.get("--cpu-s", 0))) > 0:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    if (mebibytes := int(options.get("--memory-mib", 0))) > 0:
        resource.setrlimit(resource.RLIMIT_AS, (mebibytes << 20, mebibytes << 20))


def end_group(program: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to the group, wait for the program, then kill the whole group, this process included."""
    # This process survives it, as its handler only remembers the signal.
    os.killpg(0, signal.SIGTERM)
    until = time.monotonic() + GRACE_S
    while program.poll() is None and time.monotonic() < until:
        time.sleep(POLL_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
