"""Servers that a run starts: processes of this machine, or of the nodes that only generate (`launch.nodes.generate`).

The trainer and these nodes meet in the folder `servers` of the run, which all of them see. The first rank writes the
programs to `order.json`. Each node starts them, and writes the addresses to `node<n>.json` once all of them answer. A
server that ends is started again at the same address, and the trainer takes it back at its next publish. If another
machine takes the place of a node, the trainer learns the new addresses in the same way. A new start of the trainer has
an order of its own, for which every node starts its servers again.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from verizero.pipeline.errors import EngineError
from verizero.pipeline.host.child import GRACE_S, NotReady, end, last_lines, start, status_of, wait_until, watched
from verizero.pipeline.host.disk import write_atomic
from verizero.pipeline.host.network import LOOPBACK, answers, free_port
from verizero.pipeline.shown import show

ORDER = "order.json"
POLL_S = 0.5


class ServerProcess:
    """One server on this machine; `url` answers once `wait` has returned."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None, log: Path, host: str = LOOPBACK
    ) -> None:
        """Start the server at a free port of the address `host`. `environment`: all its variables; None: ours."""
        self.log, self.environment = log, environment
        # Another process may take the port first; the server then ends, and `wait` reports its log.
        port = free_port(host)
        self.url = f"http://{host}:{port}"
        self._command = watched([*command, "--host", host, "--port", str(port)])
        log.parent.mkdir(parents=True, exist_ok=True)
        self.begin()

    def begin(self) -> None:
        """Start the server, or start it again."""
        self.is_up = False
        self.process = start(self._command, log=self.log, env=self.environment)

    def wait(self, timeout_s: float, what: str, field: str) -> None:
        """Wait until the server answers. `what` it is, and the recipe's `field` of the timeout, are for messages.

        Raises: EngineError with the log's last lines if the server ends, or does not answer in time.
        """
        try:
            wait_until(self.answers, self.process, self.log, timeout_s)
        except NotReady as exc:
            remedy = f"raise {field}, or see why: " if exc.status is None else ""
            raise EngineError(f"{what} {exc.what}; {remedy}{exc.tail}") from exc

    def answers(self) -> bool:
        """True if the server answers that it is well."""
        return answers(f"{self.url}/health")

    def close(self) -> None:
        """End the server and all its processes; kill those that do not end in time."""
        end(self.process, grace_s=2 * GRACE_S)  # twice the time after which its watcher kills it


class OrderedServers:
    """The servers of all nodes that generate, as the first rank orders them."""

    def __init__(self, folder: Path, nodes: Sequence[int]) -> None:
        """`folder` of the run; the numbers of the nodes."""
        self.folder, self.nodes, self.id = folder_of(folder), nodes, secrets.token_hex(8)

    def start(self, programs: Sequence[tuple[Sequence[str], Mapping[str, str]]], timeout_s: float, field: str) -> None:
        """Order the programs, each a command and its variables, and wait until every node's servers answer.

        Raises: EngineError if servers of a node do not start, or a node does not answer within `timeout_s`, the value
        of the recipe's `field`.
        """
        # The variables of this node, as the name of its host, are not those of another.
        ordered = [
            {"command": list(command), "more": {k: v for k, v in variables.items() if os.environ.get(k) != v}}
            for command, variables in programs
        ]
        write_atomic(self.folder / ORDER, json.dumps({"id": self.id, "programs": ordered}).encode())
        until = time.monotonic() + timeout_s
        while missing := [node for node in self.nodes if not self._reply(node).get("urls")]:
            for node in missing:
                if failed := self._reply(node).get("failed"):
                    raise EngineError(f"node {node}, which generates, cannot start its servers: {failed}")
            if time.monotonic() > until:
                raise EngineError(
                    f"no servers after {timeout_s:g} s ({field}) on nodes {', '.join(map(str, missing))}; start the "
                    "same command there, with NODE_RANK, or see what it says there"
                )
            time.sleep(POLL_S)

    def urls(self) -> tuple[str, ...]:
        """Return the addresses that the nodes have written for this order."""
        return tuple(url for node in self.nodes for url in self._reply(node).get("urls", ()))

    def close(self) -> None:
        """Withdraw the order: the nodes end their servers."""
        (self.folder / ORDER).unlink(missing_ok=True)

    def _reply(self, node: int) -> dict[str, Any]:
        reply = _read(self.folder / f"node{node}.json")
        return reply if reply.get("order") == self.id else {}


class ServersOfNode:
    """The servers of this node, as the trainer has ordered them last."""

    def __init__(self, folder: Path, node: int, host: str) -> None:
        """`folder` of the run, the number of this node, and its address for the trainer."""
        self.logs, self.folder, self.node, self.host = folder / "logs", folder_of(folder), node, host
        self.order, self.is_told = "", False
        self._servers: list[ServerProcess] = []

    def look(self) -> None:
        """Start what is ordered, end what is not, tell the trainer, and start again what has ended."""
        order = _read(self.folder / ORDER)
        if (wanted := order.get("id", "")) != self.order:
            self.close()
            self.order, self.is_told = wanted, False
            logs = [self.logs / f"server-{self.node}-{i}.log" for i in range(len(order.get("programs", ())))]
            self._servers = [
                ServerProcess(program["command"], {**os.environ, **program["more"]}, log, self.host)
                for program, log in zip(order.get("programs", ()), logs, strict=True)
            ]
            show(f"verizero: node {self.node} starts {len(logs)} servers" if wanted else "verizero: servers end")
        for server in list(self._servers):
            if status_of(server.process) is None:
                server.is_up = server.is_up or server.answers()
                continue
            server.close()  # what is left of its processes
            if server.is_up:
                show(f"verizero: the server {server.url} ended; it is started again, see {server.log}")
                server.begin()
                continue
            # Another try would end as this one did.
            self._servers.remove(server)
            failed = f"{server.url} ended before it answered; {server.log} ends:\n" + "\n".join(last_lines(server.log))
            show(f"verizero: {failed}", is_error=True)
            if not self.is_told:
                self._tell(failed=failed)
        if not self.is_told and self._servers and all(server.is_up for server in self._servers):
            self._tell(urls=[server.url for server in self._servers])

    def close(self) -> None:
        """End all servers of this node."""
        for server in self._servers:
            server.close()
        self._servers = []

    def _tell(self, **reply: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)  # a new start of the trainer may just have deleted it
        write_atomic(self.folder / f"node{self.node}.json", json.dumps({"order": self.order, **reply}).encode())
        self.is_told = True


def folder_of(run: Path) -> Path:
    """Return the folder in which trainer and nodes meet, which is made if it is missing. `run`: the run's folder."""
    folder = run / "servers"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def forget_orders(run: Path) -> None:
    """Delete what earlier starts of the trainer and of nodes have left in the run's folder."""
    shutil.rmtree(run / "servers", ignore_errors=True)


def _read(file: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        read: dict[str, Any] = json.loads(file.read_text())
        return read
    return {}
