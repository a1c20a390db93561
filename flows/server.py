"""Prefect's own server as a child process on loopback that lives exactly as long as the one that started it.

Run as `python -m flows.server PORT`; with `--services` it also has the scheduler and the automations, which one run
that nobody triggers has no use for. It dies with its parent, however that dies, so a killed run leaves no server.
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
from pathlib import Path

from flows.server_patches import AtHome, take_turns
from pipeline.errors import RunError

PR_SET_PDEATHSIG = 1
QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
}
"""No request leaves this machine."""


class EmbeddedServer:
    """The child process and its address. Start it from the main thread: it dies with the thread that started it."""

    def __init__(self, home: Path, log: Path, port: int | None = None, services: bool = False) -> None:
        self.port = free_port() if port is None else port
        self.log = log
        home.mkdir(parents=True, exist_ok=True)
        own = {**QUIET, **self.settings(home), **({} if services else {"PREFECT__SERVER_EPHEMERAL": "1"})}
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "flows.server", str(self.port), *(["--services"] if services else [])],
                env={**os.environ, **own},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,  # Ctrl-C in the terminal stops the run first, the server after it
            )

    @property
    def address(self) -> str:
        """Where the UI is."""
        return f"http://127.0.0.1:{self.port}"

    def settings(self, home: Path) -> Mapping[str, str]:
        """Environment of server and client alike."""
        return {
            "PREFECT_HOME": str(home),
            "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home / 'prefect.db'}",
            "PREFECT_API_URL": f"{self.address}/api",
            "PREFECT_UI_API_URL": f"{self.address}/api",
            "PREFECT_LOGGING_LEVEL": "WARNING",
        }

    def wait(self, timeout_s: float) -> None:
        """Return once the server answers.

        Raises: RunError naming its log if it ended or did not answer in time.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RunError(
                    f"Prefect's embedded server ended with status {self.process.returncode}; see {self.log}. "
                    "`verizero doctor` says whether the installed versions fit; --no-prefect runs without it"
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
    """A Prefect server answers at `api`, an address that ends in /api."""
    import httpx

    try:
        return httpx.get(f"{api}/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def serve(port: int, services: bool) -> None:
    """Serve API and UI on loopback until the parent dies or SIGTERM comes."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before the line above
        return
    import uvicorn
    from prefect.server.api.server import create_app, create_ui_app

    take_turns()
    app = create_app(ephemeral=not services)  # without schedulers and late-run marking: one run, started here
    if not services:
        app.router.routes = [route for route in app.router.routes if getattr(route, "name", "") != "ui"]
        app.mount("/", create_ui_app(ephemeral=False), name="ui")  # an ephemeral app has an empty page in its place
    app.add_middleware(AtHome)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", lifespan="on", timeout_graceful_shutdown=3)


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    serve(int(sys.argv[1]), "--services" in sys.argv[2:])
