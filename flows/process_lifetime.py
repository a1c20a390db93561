"""The process of a flow that a runner or worker started: it dies with its parent, and soon after it is asked to end."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Mapping

from pipeline.launch import die_with

RUNNER = "VERIZERO_RUNNER"
"""Names the process that a flow must not outlive; without it, the flow's parent is that."""
END_WITHIN_S = 10.0
"""From SIGTERM to the end: what a flow does not put in order by then is left to its checkpoint."""


def settle(environment: Mapping[str, str] = os.environ) -> None:
    """Call first in a flow's process: from now on nothing of it stays when its runner dies or it is cancelled."""
    parent = int(environment.get(RUNNER, os.getppid()))
    if parent > 1:  # 1 and 0: the first process of a container has no parent to die with
        die_with(parent)
    if threading.current_thread() is threading.main_thread():
        end_soon_after(signal.SIGTERM, END_WITHIN_S)


def end_soon_after(number: int, seconds: float) -> None:
    """Kill this process `seconds` after the signal `number` came, though the main thread may be deep in C by then.

    A handler in Python waits for the main thread; the interpreter's wake-up socket is written to by the signal itself.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

    def watch() -> None:
        with writer, reader:
            while got := reader.recv(64):
                if number in got:
                    time.sleep(seconds)
                    os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="end-soon", daemon=True).start()
