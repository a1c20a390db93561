"""Run `verizero train` as a flow on this machine: prepare the data while Prefect's embedded server starts."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from verizero.flows.server import QUIET, EmbeddedServer
from verizero.pipeline.config.recipes import Resume, run_folder
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.errors import RunError, VerizeroError
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.run.data import RunData
from verizero.pipeline.run.opening import prepare_run


def run_here(config: RunConfig, base_dir: Path, resume: Resume, progress: Progress) -> tuple[Path, dict[str, Any]]:
    """Run the flow and return the run's folder and summary.

    The server of PREFECT_API_URL is used if that is set. If not, an embedded one is started, whose history is kept in
    `.prefect` in the folder of runs.
    """
    folder = run_folder(config)
    os.environ.update(QUIET)
    # the terminal shows our progress and each error once; Prefect's own log lines go to its server only
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    server = None
    if not os.environ.get("PREFECT_API_URL"):
        home = folder.parent / ".prefect"
        server = EmbeddedServer(home, home / "server.log")
        os.environ.update(server.settings(home))
    try:
        with ThreadPoolExecutor(1, "prepare") as executor:
            # The server takes seconds to start, in which the data is loaded.
            data = executor.submit(_prepare, config, base_dir, folder)
            if server is not None:
                progress.under_way("starts Prefect's server")
                server.wait(config.prefect.start_timeout_s)
            return folder, _run_flow(config, base_dir, folder, resume, progress, data, server)
    except VerizeroError:
        raise
    except Exception as exc:  # of Prefect's client, which tells only that the server failed
        if server is None or not (fault := server.fault()):
            raise
        raise RunError(f"Prefect's embedded server failed: {fault}") from exc
    finally:
        if server is not None:
            server.stop()


def _prepare(config: RunConfig, base_dir: Path, folder: Path) -> RunData:
    from verizero.pipeline.models.load import quiet

    quiet()
    return prepare_run(config, base_dir, folder)


def _run_flow(
    config: RunConfig,
    base_dir: Path,
    folder: Path,
    resume: Resume,
    progress: Progress,
    data: Future[RunData],
    server: EmbeddedServer | None,
) -> dict[str, Any]:
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    from verizero.flows.train import FlowJob, run_job

    if server is not None:
        progress.say(f"watch this run at {server.address} (login: {server.login_place})")
    try:
        # the embedded server ends with this process, so nobody reads a heartbeat; each flow would wait for its thread
        with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None} if server is not None else {}):
            return run_job(FlowJob(config, base_dir, folder, resume, progress, data))
    finally:
        # Prefect sends logs and events from threads; what they still hold would be lost with the server.
        APILogWorker.drain_all(timeout=20)
        EventsWorker.drain_all(timeout=20)
