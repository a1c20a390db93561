"""`verizero serve` as a child of the tests, and the few calls of its API that they need."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from tests import processes
from tests.far import FarProgram
from tests.processes import PATIENCE_S, marked, others
from tests.source import ROOT
from tests.stages.tiny import tiny
from tests.warm import FLOWS, FOLDER, MARK, ROOM, warm
from verizero.flows.server import HEALTH, LOGIN, QUIET
from verizero.pipeline.config.load import dump
from verizero.pipeline.host.disk import locked
from verizero.pipeline.host.network import answers, free_port

T = TypeVar("T")
ENDS = ("Completed", "Failed", "Crashed", "Cancelled")
PICTURES = ROOT / "tests" / "output"
"""Screenshots, for people; not kept in the repository."""
SMALL: dict[str, Any] = {
    "sft": {"steps": 3},
    "rl": {"rounds": 1, "steps_per_round": 2, "select": {"keep": "all"}, "algorithm": {"entropy_coef": 0.05}},
}
"""A bonus moves the policy, for which no answer is right."""


def until(look: Callable[[], T], what: str, patience_s: float = PATIENCE_S) -> T:
    """`tests.processes.until`, twice a second: each look at a server or at all processes takes some of a core."""
    return processes.until(look, what, patience_s, every_s=0.5)


@contextmanager
def page_of(chromium: Any) -> Iterator[Any]:
    """A page that asks no other machine. It is closed, because the UI's pages move and ask all the time."""
    asked: set[str] = set()
    page = chromium.new_page(viewport={"width": 1280, "height": 1200}, color_scheme="light", reduced_motion="reduce")
    page.set_default_timeout(120_000)
    page.add_init_script("localStorage.setItem('prefect-password', btoa('tests:secret'))")  # as after the UI's login
    page.on("requestfinished", lambda r: asked.add(urlsplit(r.url).hostname or "data"))
    page.on("requestfailed", lambda r: asked.add(r.failure) if "csp" not in str(r.failure) else None)
    yield page
    assert asked <= {"127.0.0.1", "data", "net::ERR_ABORTED"}, "a request has left this machine"
    page.close()


class Served:
    """A server with its runner, working in `folder`; recipes are in `folder`/recipes.

    Server, runner and flow runs are forks of a process that has Prefect and torch.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.log = folder / "serve.log"
        # One client, because each loads the certificates for TLS; a connection each, because the server may be killed.
        alone = httpx.Limits(max_keepalive_connections=0)
        self.client = httpx.Client(base_url=f"{self.address}/api", timeout=60, limits=alone, auth=("tests", "secret"))
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.environment = {**clean, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", LOGIN: "tests:secret"}
        self.process = self.serve()

    def serve(self) -> FarProgram:
        """Start the command on a database that is there, with a new log, and return its process."""
        new_database(self.folder / "home")
        self.log.unlink(missing_ok=True)
        words = ["serve", "--port", str(self.port), "--recipes", "recipes", "--home", "home"]
        return self.program(["verizero.pipeline.cli", *words], self.log)

    def program(self, words: list[str], log: Path, **variables: str) -> FarProgram:
        """Start a fork that becomes the module with these words, in the folder of its log."""
        mine = {**self.environment, **variables, MARK: str(self.folder)}
        return FarProgram(FLOWS, words, log, mine, log.parent)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait(self) -> None:
        def is_up() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return self.address in self.log.read_text()

        until(is_up, "the address")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(90)
            finally:
                self.process.kill()

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A `verizero` command whose PREFECT_API_URL names this server.

        No fork: Prefect chooses what it logs when it is imported, and the command chooses before that.
        """
        environment = {**self.environment, "PREFECT_API_URL": f"{self.address}/api", "DO_NOT_TRACK": "1"}
        environment["PREFECT_API_AUTH_STRING"] = environment[LOGIN]
        return subprocess.run(
            [sys.executable, "-m", "verizero.pipeline.cli", *words],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    def post(self, path: str, rows: list[Any] | None = None, **body: Any) -> Any:
        answer = self.client.post(path, json=body if rows is None else rows)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def answers(self) -> bool:
        """The server is up."""
        return answers(f"{self.address}{HEALTH}")

    def get(self, path: str) -> Any:
        answer = self.client.get(path)
        assert answer.is_success, answer.text
        return answer.json()

    def artifacts(self, run: str) -> dict[str, str]:
        """What the run itself left to be seen, by key."""
        made = self.post("/artifacts/filter", artifacts={"flow_run_id": {"any_": [run]}})
        return {a["key"]: str(a["data"]) for a in made if a["key"]}

    def retry(self, run: str) -> None:
        """What the UI's button Retry asks for."""
        self.post(f"/flow_runs/{run}/set_state", state={"type": "SCHEDULED", "name": "AwaitingRetry"}, force=True)
        until(lambda: self.state(run) == "Running", "the retry")

    def cancel(self, run: str) -> None:
        """What the UI's button Cancel asks for."""
        self.post(f"/flow_runs/{run}/set_state", state={"type": "CANCELLING"})

    def delete(self, path: str) -> None:
        assert self.client.delete(path).is_success

    def deployment(self, flow: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/deployments/name/{flow}/{flow}")
        return found

    def start(self, flow: str, **parameters: Any) -> str:
        """The id of a run of that deployment."""
        made = self.post(f"/deployments/{self.deployment(flow)['id']}/create_flow_run", parameters=parameters)
        return str(made["id"])

    def run(self, run: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/flow_runs/{run}")
        return found

    def state(self, run: str) -> str:
        return str(self.run(run)["state"]["name"])

    def ended(self, run: str) -> dict[str, Any]:
        """The run, once it has ended."""
        until(lambda: self.state(run) in ENDS, f"the end of run {run}", 2 * PATIENCE_S)
        return self.run(run)

    def process_of(self, run: str) -> int | None:
        """The process that was started for a flow run."""
        own = marked(f"PREFECT__FLOW_RUN_ID={run}")
        return next((process for process, words in own.items() if "prefect.engine" in words), None)

    def processes(self, word: str = "") -> list[int]:
        """Live processes that this server started, with `word` in their command."""
        own = marked(f"{MARK}={self.folder}")
        return [process for process, words in own.items() if word in words and process != self.process.pid]


@contextmanager
def serving(folder: Path) -> Iterator[Served]:
    """Serve a small recipe; at the end no process is left."""
    (folder / "recipes").mkdir()
    (folder / "recipes" / "small.yaml").write_text(dump(tiny({**SMALL, "name": "small"})))
    server = Served(folder)
    try:
        server.wait()
        until(lambda: len(server.processes()) >= 2, "the server and the runner")
        mine = server.processes()
        assert not [words for p, words, variables in others() if p in mine and f"\0{ROOM}=" not in variables], "forks"
        yield server
    finally:
        server.stop()
        until(lambda: not server.processes(), "the end of all processes")
        print((folder / "home" / "runner.log").read_text()[-3000:])


def new_database(home: Path) -> None:
    """Make the folder with an empty database of Prefect: its tables take a server three seconds."""
    home.mkdir(exist_ok=True)
    made = Path(os.environ[FOLDER]) / "prefect.db"
    with locked(made.parent, wait=True):
        if not made.exists():
            unfinished = made.with_suffix(".new")
            warm(FLOWS).call(make_database, unfinished)
            unfinished.rename(made)
    if not (home / "prefect.db").exists():
        shutil.copy(made, home)


def make_database(path: Path) -> None:
    """Make all tables of Prefect's server."""
    from prefect.server.database import provide_database_interface
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL, temporary_settings

    with temporary_settings({PREFECT_API_DATABASE_CONNECTION_URL: f"sqlite+aiosqlite:///{path}"}):
        asyncio.run(provide_database_interface().create_db())


class ServerAlone(Served):
    """Prefect's server without deployments and without a runner, as somebody else has it."""

    def serve(self) -> FarProgram:
        """Start the server and return its process."""
        home = self.folder / "home"
        new_database(home)
        database = f"sqlite+aiosqlite:///{home / 'prefect.db'}"
        own = {**QUIET, "PREFECT_API_DATABASE_CONNECTION_URL": database, "PREFECT_HOME": str(home)}
        return self.program(["verizero.flows.server", str(self.port), "--services"], self.log, **own)

    def wait(self) -> None:
        until(lambda: answers(f"{self.address}{HEALTH}"), "the server")
