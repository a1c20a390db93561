"""Parameters of servers that generate responses: those of every kind, and the kinds by name.

`rollout.engine: vllm_server` is the file of that name in `pipeline/rollout/servers/`. Other kinds are entry points of
installed packages, in the group `verizero.servers`; their parameters are the recipe's `rollout.server`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

from pydantic import Field

from verizero.pipeline import registry
from verizero.pipeline.config.sections import Section
from verizero.pipeline.environments.base import params_of
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.near import did_you_mean

IN_PROCESS = ("auto", "torch", "vllm")
"""Engines that run in the training process."""
VLLM_SERVER = "vllm_server"


class ServerParams(Section):
    """Base of the parameters of a kind of server: their addresses, and limits of requests to them."""

    may_change: ClassVar[frozenset[str]] = frozenset(
        {"servers", "urls", "bucket_mib", "concurrency", "start_timeout_s", "request_timeout_s", "health_timeout_s"}
    )
    """Fields that may change on resume, because they change no response: addresses, timeouts, memory."""
    servers: int = Field(1, ge=1, description="number of servers that the run starts, if `urls` is empty")
    urls: tuple[str, ...] = Field((), description="addresses http://host:port of servers that already run")
    bucket_mib: int = Field(256, ge=1, description="servers: size of the pieces that weights are sent in")
    concurrency: int = Field(256, ge=1, description="servers: most open requests to each, over all ranks")
    start_timeout_s: float = Field(600, gt=0, description="servers: seconds to wait for a started one to answer")
    request_timeout_s: float = Field(
        1200, gt=0, description="servers: seconds to wait for one response or one piece of weights"
    )
    health_timeout_s: float = Field(
        60, gt=0, description="servers: seconds of silence before one's health is checked; the check may take as long"
    )


def check_engine(name: str) -> str:
    """Return the name. Raises: ValueError unless there is an engine of that name."""
    if name in (*IN_PROCESS, VLLM_SERVER):
        return name
    known = [*IN_PROCESS, *registry.names("servers")]
    if name not in known:
        hint = did_you_mean(name, known, f"known: {', '.join(known)}")
        others = "others come with installed packages (entry points verizero.servers)"
        raise ValueError(f"no engine has that name; {hint}; {others}, got {name!r}")
    return name


def load_servers(name: str) -> tuple[type[ServerParams], Callable[..., Any]]:
    """Return a kind of servers: the class of its parameters and the maker of its client. Raises: ValueError."""
    try:
        plugin = registry.find("servers", name)
        function = getattr(plugin, "servers", None) if isinstance(plugin, ModuleType) else plugin
        return params_of(function, ServerParams, f"rollout.engine {name!r}")
    except (ConfigError, ImportError) as exc:
        raise ValueError(str(exc)) from exc
