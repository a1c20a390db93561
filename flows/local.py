"""Prefect for `verizero train` on this machine: its server, and the orchestrator that shows the run there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from verizero.flows.server import QUIET, EmbeddedServer
from verizero.pipeline.config.recipes import run_folder
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.errors import RunError, VerizeroError
from verizero.pipeline.report.progress import Progress

if TYPE_CHECKING:
    from verizero.flows.train import NewFlow


START_TIMEOUT_S = 300
"""Seconds that the embedded server may take to start."""


@contextmanager
def prefect_server(config: RunConfig, progress: Progress) -> Iterator[NewFlow]:
    """Yield the orchestrator for `whole_run.train`, while a server of Prefect answers.

    The server of PREFECT_API_URL is used if that is set. If not, an embedded one is started, whose history is kept in
    `.prefect` in the folder of runs.
    """
    os.environ.update(QUIET)
    # the terminal shows our progress and each error once; Prefect's own log lines go to its server only
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    server = None
    if not os.environ.get("PREFECT_API_URL"):
        home = run_folder(config).parent / ".prefect"
        server = EmbeddedServer(home, home / "server.log")
        os.environ.update(server.settings(home))
    try:
        # The server takes seconds to start, in which torch, Prefect and the rest are imported.
        import verizero.pipeline.whole_run  # noqa: F401

        if server is not None:
            progress.under_way("starts Prefect's server")
            server.wait(START_TIMEOUT_S)
            progress.say(f"watch this run at {server.address} (login: {server.login_place})")
        with _client(has_heartbeat=server is None) as orchestrator:
            yield orchestrator
    except VerizeroError:
        raise
    except Exception as exc:  # of Prefect's client, which tells only that the server failed
        if server is None or not (fault := server.fault()):
            raise
        raise RunError(f"Prefect's embedded server failed: {fault}") from exc
    finally:
        if server is not None:
            server.stop()


@contextmanager
def _client(has_heartbeat: bool) -> Iterator[NewFlow]:
    """Yield the orchestrator; at the end wait until Prefect's client has sent what it still has."""
    # Imported once the environment has the server's address.
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    from verizero.flows.train import NewFlow

    try:
        # the embedded server ends with this process, so nobody reads a heartbeat; each flow would wait for its thread
        with temporary_settings({} if has_heartbeat else {PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            yield NewFlow()
    finally:
        # Prefect sends logs and events from threads; what they still hold would be lost with the server.
        APILogWorker.drain_all(timeout=20)
        EventsWorker.drain_all(timeout=20)
