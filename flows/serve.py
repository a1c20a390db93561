"""Serve Prefect's server, its UI, the deployments and a runner on this machine, and end them together.

This process watches two children, and restarts one that ends by itself: the server, and the runner
(`python -m verizero.flows.serve`), whose children are the flows. Each child ends with its parent, even if that is
killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from verizero.flows.server import HEALTH, QUIET, EmbeddedServer
from verizero.pipeline.errors import ConfigError, RunError, fault_in_log
from verizero.pipeline.host.child import (
    SAFE_PATH,
    Lines,
    NotReady,
    appended,
    die_with,
    end,
    import_path,
    module_command,
    size_of,
    start,
    wait_until,
)
from verizero.pipeline.host.network import LOOPBACK, answers

READY = b"ready\n"
LOOK_EVERY_S = 0.3
FLOWS_GRACE_S = 14.0
"""Seconds for the flows to end in order; then the runner is killed, and the flows with it."""
MAX_RESTARTS, RESTARTS_WITHIN_S = 5, 300.0
SETTINGS = {
    # a request waits 2, 4, 8, … s between tries, 254 s in all, for a server that is started again on a slow machine
    "PREFECT_CLIENT_MAX_RETRIES": "7",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",  # verizero.flows.deployments waits for three of these
    "PREFECT_RUNNER_POLL_FREQUENCY": "2",
    "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "10",
    "PREFECT_SERVER_SERVICES_SCHEDULER_MAX_RUNS": "20",
    "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
}


class Stopped(Exception):
    """SIGINT or SIGTERM came."""


def serve_here(home: Path, port: int, recipes: Path, start_timeout_s: float, say: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM. `home` keeps database and logs; `recipes` is the user's folder of recipes.

    Raises: ConfigError for a port in use; RunError if a child does not start, or ends MAX_RESTARTS times.
    """
    # Asked first: our own server would fail to bind, while the old one answers in its place.
    if answers(f"http://{LOOPBACK}:{port}{HEALTH}"):
        raise ConfigError(f"port {port} already has a Prefect server; stop it, or choose another --port")
    # Before the children start, so that none is left behind by an early Ctrl-C.
    before = {number: signal.signal(number, _stop) for number in (signal.SIGINT, signal.SIGTERM)}
    pair = ServerAndRunner(home, port, recipes, start_timeout_s)
    try:
        pair.start()
        say(f"UI, runner and deployments are at {pair.server.address}, logs in {home}; Ctrl-C ends them")
        say(f"the UI asks for a login: it is in {pair.server.login_place}")
        while True:
            time.sleep(LOOK_EVERY_S)
            for line in pair.revive():
                say(line)
    except Stopped:
        say("ending the runs; each continues from its last checkpoint when it is started again")
    finally:
        for number in before:
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not interrupt the end
        pair.end()
        for number, handler in before.items():
            signal.signal(number, handler)


class ServerAndRunner:
    """The two children."""

    def __init__(self, home: Path, port: int, recipes: Path, start_timeout_s: float) -> None:
        self.home, self.port, self.timeout_s = home.resolve(), port, start_timeout_s
        os.environ.update({**QUIET, **{k: v for k, v in SETTINGS.items() if k not in os.environ}})
        os.environ["VERIZERO_RECIPES"] = str(recipes.resolve())
        self.log = self.home / "runner.log"
        """The runner's."""
        self.restarts: list[float] = []
        self.server = self._server()
        self.runner = self._runner()

    def start(self) -> None:
        """Wait until the server answers and the runner has registered the deployments. Raises: RunError."""
        self.server.wait(self.timeout_s)
        self._wait_for_runner()

    def revive(self) -> list[str]:
        """Restart a child that ended, and return lines about it. Raises: RunError if that happens too often."""
        lines = []
        if self.server.process.poll() is not None:
            lines.append(f"the server ended with status {self.server.process.returncode} and is started again")
            self._count(self.server.log)
            self.server = self._server()
        if self.runner.poll() is not None:
            lines.append(f"the runner ended with status {self.runner.returncode} and is started again")
            self._count(self.log)
            self.runner = self._runner()
        return lines

    def end(self) -> None:
        """End the runner, which ends the flows, and then the server."""
        # SIGINT has Prefect's runner cancel its flows; the server stays up to take their last states.
        end(self.runner, grace_s=FLOWS_GRACE_S, first=signal.SIGINT)
        self.server.stop()

    def _server(self) -> EmbeddedServer:
        return EmbeddedServer(self.home, self.home / "server.log", self.port, services=True)

    def _runner(self) -> subprocess.Popen[bytes]:
        self.log_begin = size_of(self.log)
        more = {**self.server.settings(self.home), "PREFECT_LOGGING_LEVEL": "INFO"}
        command = [*module_command("verizero.flows.serve"), str(os.getpid())]
        return start(command, more, log=self.log, stdout=subprocess.PIPE)

    def _wait_for_runner(self) -> None:
        written = Lines(self.runner)
        try:
            wait_until(lambda: written.next(0) == READY, self.runner, self.log, self.timeout_s)
        except NotReady as exc:
            fault = fault_in_log(appended(self.log, self.log_begin).decode(errors="replace"))
            raise RunError(f"the runner of flows {exc.what}; {fault or exc.tail}") from exc

    def _count(self, log: Path) -> None:
        now = time.monotonic()
        # Only recent ones count: a run of weeks may lose its server now and then.
        self.restarts = [t for t in self.restarts if now - t < RESTARTS_WITHIN_S] + [now]
        if len(self.restarts) > MAX_RESTARTS:
            raise RunError(f"server or runner ended {len(self.restarts)} times in {RESTARTS_WITHIN_S:g} s; see {log}")


def run_deployments(parent: int) -> None:
    """Register the deployments and the automation, write READY, and run what is triggered until SIGINT."""
    from verizero.flows.process_lifetime import RUNNER

    die_with(parent)
    # Flows are grandchildren, which a signal for dead parents of this process would not reach.
    os.environ[RUNNER] = str(os.getpid())
    os.environ[SAFE_PATH] = "1"  # for Prefect's `python -m prefect.engine`
    os.environ |= import_path()  # for the same programs
    import asyncio

    from prefect.runner import Runner

    from verizero.flows.deployments import all_deployments, register_automation

    # Made while the server starts: importing the flows takes seconds.
    deployments = all_deployments()
    health = f"{os.environ['PREFECT_API_URL']}/health"
    while not answers(health):  # no deadline: the parent has one, and ends us
        time.sleep(LOOK_EVERY_S)
    # Prefect's own place is one folder for all users of a machine, in which only the first of them may write.
    tempfile.tempdir = os.environ["PREFECT_HOME"]
    # By default Prefect pauses every schedule when a runner ends, and nothing resumes them.
    runner = Runner(name="verizero", pause_on_shutdown=False)
    tempfile.tempdir = None
    for deployment in deployments:
        runner.add_deployment(deployment)
    register_automation()
    sys.stdout.buffer.write(READY)
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())  # the parent reads READY and nothing more
    try:
        asyncio.run(runner.start())
    except KeyboardInterrupt:
        return


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped


if __name__ == "__main__":
    run_deployments(int(sys.argv[1]))
