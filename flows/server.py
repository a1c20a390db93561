"""Prefect's server as a child process on loopback, which ends with the process that started it.

Run as `python -m flows.server PORT`; with `--services` it also has the scheduler and the automations, which a single
run does not need. It ends with its parent even if that is killed, so no run leaves a server behind.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from flows.server_patches import SameHostOnly, lock_early
from pipeline.errors import RunError
from pipeline.own_programs import module_command

PR_SET_PDEATHSIG = 1
QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
}
"""Settings that keep Prefect from sending requests to other hosts."""


class EmbeddedServer:
    """The server's process and address. Start it from the main thread: it ends with the thread that started it."""

    def __init__(self, home: Path, log: Path, port: int | None = None, services: bool = False) -> None:
        self.port = free_port() if port is None else port
        self.log = log
        home.mkdir(parents=True, exist_ok=True)
        own = {**QUIET, **self.settings(home), **({} if services else {"PREFECT__SERVER_EPHEMERAL": "1"})}
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [*module_command("flows.server"), str(self.port), *(["--services"] if services else [])],
                env={**os.environ, **own},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                # Ctrl-C in the terminal then stops the run first, while the server still takes its last states
                start_new_session=True,
            )

    @property
    def address(self) -> str:
        """The address of the UI."""
        return f"http://127.0.0.1:{self.port}"

    def settings(self, home: Path) -> Mapping[str, str]:
        """Return the environment variables that server and clients need."""
        return {
            "PREFECT_HOME": str(home),
            "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home / 'prefect.db'}",
            "PREFECT_API_URL": f"{self.address}/api",
            "PREFECT_UI_API_URL": f"{self.address}/api",
            "PREFECT_LOGGING_LEVEL": "WARNING",
        }

    def wait(self, timeout_s: float) -> None:
        """Wait until the server answers. Raises: RunError naming its log if it ends or does not answer in time."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RunError(
                    f"Prefect's embedded server ended with status {self.process.returncode}; see {self.log}. "
                    "`verizero doctor` tells whether the installed versions fit; --no-prefect trains without a server"
                )
            if answers(f"{self.address}/api"):
                return
            time.sleep(0.1)
        raise RunError(
            f"Prefect's embedded server did not answer within {timeout_s:g} s; raise prefect.start_timeout_s, or see "
            f"{self.log}"
        )

    def stop(self) -> None:
        """End the server."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def answers(api: str) -> bool:
    """True if a Prefect server answers at `api`, an address of this machine that ends in /api."""
    place = urlsplit(api)
    # Asked ten times a second while a server starts; httpx would load the certificates for TLS each time.
    connection = HTTPConnection(place.hostname or "", place.port, timeout=5)
    try:
        connection.request("GET", f"{place.path}/health")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def serve(port: int, services: bool) -> None:
    """Serve API and UI on loopback until the parent ends or SIGTERM comes."""
    parent = os.getppid()
    # SIGTERM, not SIGKILL: the server then closes its database in order.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before the line above
        return
    import uvicorn
    from prefect.server.api.server import create_app, create_ui_app

    lock_early()
    app = create_app(ephemeral=not services)  # an ephemeral server has no scheduler and marks no late runs
    if not services:
        app.router.routes = [route for route in app.router.routes if getattr(route, "name", "") != "ui"]
        app.mount("/", create_ui_app(ephemeral=False), name="ui")  # an ephemeral app has an empty page there
    # Open browser tabs hold websockets, so a graceful end needs a limit.
    app.add_middleware(SameHostOnly)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", lifespan="on", timeout_graceful_shutdown=3)


def free_port() -> int:
    """Return a free port of loopback. Another process may take it before it is used."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    serve(int(sys.argv[1]), "--services" in sys.argv[2:])
