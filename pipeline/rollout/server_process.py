"""Servers that a run starts on this machine. Each has a log, and ends with the run, even if the run is killed."""

from __future__ import annotations

from pathlib import Path

from verizero.pipeline.child import GRACE_S, NotReady, end, start, wait_until, watched
from verizero.pipeline.errors import EngineError
from verizero.pipeline.listening import LOOPBACK, answers, free_port
from verizero.pipeline.rollout.server_client import Program


class ServerProcess:
    """One server on this machine; `url` answers once `wait` has returned."""

    def __init__(self, program: Program, log: Path) -> None:
        self.log = log
        # Another process may take the port first; the server then ends, and `wait` reports its log.
        port = free_port()
        self.url = f"http://{LOOPBACK}:{port}"
        log.parent.mkdir(parents=True, exist_ok=True)
        command = watched([*program.command, "--host", LOOPBACK, "--port", str(port)])
        self.process = start(command, log=log, env=program.environment or None)

    def wait(self, timeout_s: float, what: str, field: str) -> None:
        """Wait until the server answers. `what` it is, and the recipe's `field` of the timeout, are for messages.

        Raises: EngineError with the log's last lines if the server ends, or does not answer in time.
        """
        try:
            wait_until(lambda: answers(f"{self.url}/health"), self.process, self.log, timeout_s)
        except NotReady as exc:
            remedy = f"raise {field}, or see why: " if exc.status is None else ""
            raise EngineError(f"{what} {exc.what}; {remedy}{exc.tail}") from exc

    def close(self) -> None:
        """End the server and all its processes; kill those that do not end in time."""
        end(self.process, grace_s=2 * GRACE_S)  # twice the time after which its watcher kills it
