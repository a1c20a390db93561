"""Protocols of one kind of server, for a pool of them (`server_pool`): programs to start, a client of each server.

An installed package brings a kind of its own: a function `servers(params, setting)` that returns a `Client`, as an
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
    """The server does not answer, or gives an answer that no working server would; others take over its work."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The run that servers are for."""

    policy: EngineModel
    max_rows: int
    """The recipe's `rollout.max_rows`."""
    folder: Path
    """The run's folder, which ranks and servers on other machines may see too."""
    field: str
    """The recipe's section with the servers' parameters, for messages."""
    num_ranks: int = 1


@dataclass(frozen=True, slots=True)
class Program:
    """A command that starts a server.

    The pool appends `--host HOST --port PORT`. The server is ready once `GET /health` answers without an error.
    """

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    """All variables of the process, in place of this one's; empty: this one's."""


class Server(Protocol):
    """The client of one server. Several threads may call `sample` at once.

    Raises: ServerLost where another server may do better; EngineError for what any server would refuse.
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
        """End the update: call the weights `label`, and forget what was computed with the old ones.

        Raises: ServerLost unless the server then says that its weights are called so.
        """
        ...

    def was_restarted(self) -> bool:
        """True if the server answers within a few seconds and its weights have another label than before."""
        ...

    def close(self) -> None:
        """Let go of the server, which keeps running and may be used again. May take a while."""
        ...


class Client(Protocol):
    """One kind of server, with the parameters of a recipe."""

    kind: str
    """The name in messages, and of the servers' logs."""
    longest: int | None
    """The most tokens of prompt and response together."""
    longest_field: str
    """The source of `longest`, in words for a message."""

    @property
    def params(self) -> ServerParams:
        """The recipe's parameters."""
        ...

    @property
    def way(self) -> str:
        """The transport of weights, for the records of a run."""
        ...

    def programs(self) -> Sequence[Program]:
        """Return the commands that start `params.servers` servers on this machine. Raises: ConfigError."""
        ...

    def connect(self, url: str) -> Server:
        """Return the client of one server, without asking it anything. Raises: EngineError for a wrong address."""
        ...

    def pieces(self, weights: Named) -> Generator[Any, None, None]:
        """Yield the weights in pieces where servers can read them; the next one when all servers have taken one."""
        ...

    def close(self) -> None:
        """Release what the programs needed; their servers have ended."""
        ...
