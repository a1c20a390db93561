"""The lifetime of a flow's process: it ends with its runner, within seconds of SIGTERM, and after Suspend in the UI."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from prefect.context import FlowRunContext
from prefect.events import emit_event

from verizero.pipeline.host.child import die_with, leave_safe_path

RUNNER = "VERIZERO_RUNNER"
"""Variable with the id of the process that a flow must not outlive; without it, that is the flow's parent."""
END_WITHIN_S = 10.0
"""Seconds from SIGTERM until the process is killed. Unsaved work is then done again from the checkpoint."""
SUSPENDED = "verizero.run.suspended"
"""Event of a flow run whose process ends because of Suspend, so that no heartbeat is missed after it."""


@contextmanager
def own_process() -> Iterator[None]:
    """Bind the lifetime of this process, which is a flow run's own, and emit SUSPENDED if it ends by Suspend."""
    bind_lifetime()
    try:
        yield
    finally:
        context = FlowRunContext.get()
        if context is not None and context.flow_run and context.flow_run_suspension_request.is_requested():
            emit_event(SUSPENDED, {"prefect.resource.id": f"prefect.flow-run.{context.flow_run.id}"})


def stop_if_suspended() -> None:
    """Raise Prefect's Pause if somebody has suspended the current flow run. Prefect does so before each task."""
    if context := FlowRunContext.get():
        context.flow_run_suspension_request.raise_if_requested()


def bind_lifetime(environment: Mapping[str, str] = os.environ) -> None:
    """End this process when its runner dies, and soon after a cancel."""
    leave_safe_path()
    parent = int(environment.get(RUNNER, os.getppid()))
    if parent > 1:  # the first process of a container has no parent (0), and an orphan's is init (1)
        die_with(parent)
    if threading.current_thread() is threading.main_thread():
        end_soon_after(signal.SIGTERM, END_WITHIN_S)


def end_soon_after(number: int, seconds: float) -> None:
    """Kill this process `seconds` after the signal `number`, even if the main thread is busy in a C library then.

    Python runs signal handlers in the main thread only, between its instructions; but the signal itself writes to the
    wake-up socket, which a thread of its own reads here.
    """
    reader, writer = socket.socketpair()
    # Python demands it: a full socket must not block inside a signal handler.
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

    def watch() -> None:
        with writer, reader:
            # One byte for each signal: its number.
            while signals := reader.recv(64):
                if number in signals:
                    time.sleep(seconds)
                    os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="end-soon", daemon=True).start()
