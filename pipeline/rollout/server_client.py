"""The protocols of one kind of server: programs that start servers, and a client of each, for `server_pool`.

An installed package can add a kind: a function `servers(params, setup)` that returns a `Client`, as an
entry point of the group `verizero.servers` (docs/engines.md).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from verizero.pipeline.config.servers import ServerParams
from verizero.pipeline.rollout.engine import Completion, Sampling
from verizero.pipeline.rollout.engine_model import EngineModel
from verizero.pipeline.rollout.weights import Named


class ServerLost(Exception):
    """The server does not answer, or gives an answer that no working server would; other servers do its work."""


@dataclass(frozen=True, slots=True)
class ServerSetup:
    """The parts of a run that its servers depend on."""

    policy: EngineModel
    max_rows: int
    """The recipe's `rollout.max_rows`."""
    folder: Path
    """The run's folder, which ranks and servers on other machines may see too."""
    field: str
    """The recipe's section with the servers' parameters, for error messages."""
    nodes: tuple[int, ...] = ()
    """The numbers of the nodes that start the programs; empty: this machine does."""


@dataclass(frozen=True, slots=True)
class Program:
    """A command that starts a server.

    The pool appends `--host HOST --port PORT`. The server is ready once `GET /health` answers without an error.
    """

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    """All environment variables of the program; empty: those of this process."""


class Server(Protocol):
    """The client of one server. Several threads may call `sample` at once.

    Raises: ServerLost if another server may succeed; EngineError for a request that any server would refuse.
    """

    @property
    def url(self) -> str:
        """The server's address."""
        ...

    def sample(self, prompt_ids: Sequence[int], seed: int, sampling: Sampling, label: str) -> Completion:
        """Return one response, which depends on prompt, seed and weights alone.

        Raises: ServerLost too if other weights than those called `label` drew any of it.
        """
        ...

    def take_weights(self, piece: Any) -> None:
        """Give the server a piece of new weights, as `Client.pieces` yields it. The first one begins an update."""
        ...

    def confirm(self, label: str) -> None:
        """End the update: call the weights `label`, and clear caches of the old ones.

        Raises: ServerLost unless the server then reports that label.
        """
        ...

    def was_restarted(self) -> bool:
        """True if the server answers within a few seconds and its weights have another label than before.

        Asked before each publish; another label than that of the last one means a new or a restarted server.
        """
        ...

    def close(self) -> None:
        """Close the connections. The server keeps running and may be used again. May take a while."""
        ...


class Client(Protocol):
    """One kind of server, with the parameters of a recipe."""

    kind: str
    """The name in messages, and of the servers' logs."""
    longest: int | None
    """The most tokens of prompt and response together."""
    longest_field: str
    """The field that `longest` comes from, for error messages."""

    @property
    def params(self) -> ServerParams:
        """The recipe's parameters."""
        ...

    def programs(self) -> Sequence[Program]:
        """Return the commands that start `params.servers` servers, here or on each node. Raises: ConfigError."""
        ...

    def connect(self, url: str) -> Server:
        """Return the client of one server, without a request to it. Raises: EngineError for a wrong address."""
        ...

    def pieces(self, weights: Named) -> Generator[Any, None, None]:
        """Yield the weights in pieces that servers can read. The next is requested when all servers have one."""
        ...

    def close(self) -> None:
        """Remove files that the programs needed; their servers have ended."""
        ...
