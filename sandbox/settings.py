"""The machines on which this process runs programs, and the limits of a program: set once, by the recipe."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from verizero.pipeline.errors import IsolationError
from verizero.sandbox import api
from verizero.sandbox.api import Trial
from verizero.sandbox.calls import Quota
from verizero.sandbox.languages import LANGUAGES, TOOLS, available
from verizero.sandbox.pool import Pool
from verizero.sandbox.results import Limits, RunResult
from verizero.sandbox.session import Session

if TYPE_CHECKING:
    from verizero.sandbox.client import Client, RemoteSession

VARIABLE = "VERIZERO_SANDBOX"
"""Environment variable that hands the settings to a process that plays episodes."""


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """The sandbox of this process: services at `urls`, or without any the workers of this machine."""

    limits: Limits = field(default_factory=Limits)
    """Limits of a program whose verifier sets none."""
    workers: int | None = None
    """Programs at one time on this machine; None is two per core."""
    min_level: int = 2
    urls: tuple[str, ...] = ()
    token: str | None = field(default=None, repr=False)
    packages: tuple[str, ...] = ()
    """Installed distributions that programs may import."""
    python: str | None = None
    """The interpreter of programs; None is the one that runs."""


_lock = threading.Lock()
_settings = SandboxSettings()
_services: Client | None = None
_tools: Pool | None = None


def current() -> SandboxSettings:
    """Return the settings in use."""
    return _settings


def configure(settings: SandboxSettings) -> None:
    """Run the programs of this process by `settings` from now on; never call this while programs run.

    Former workers are ended. Raises: ValueError for a malformed address.
    """
    global _settings, _services, _tools
    if settings == _settings:
        return
    services: Client | None = None
    if settings.urls:
        from verizero.sandbox.client import Client  # only here: a run on this machine alone loads no network code

        services = Client(settings.urls, settings.token)
    with _lock:
        old_pool, _tools = _tools, None
        _settings, _services = settings, services
    if old_pool is not None:
        old_pool.close()
    here = settings if services is None else replace(settings, packages=(), python=None)  # they are the services'
    api.configure(here.workers, here.min_level, packages=here.packages, python=here.python)


def variables() -> dict[str, str]:
    """Return the environment variables by which a process that this one starts takes over these settings."""
    return {VARIABLE: json.dumps(asdict(_settings))}


def take_over(environ: Mapping[str, str] = os.environ) -> None:
    """Run the programs of this process by the settings of the process that started it, if it gave any."""
    if VARIABLE in environ:
        fields = json.loads(environ[VARIABLE])
        configure(SandboxSettings(**fields | {"limits": Limits(**fields["limits"]), "urls": tuple(fields["urls"]),
                                         "packages": tuple(fields["packages"])}))  # fmt: skip


def run(trials: Sequence[Trial]) -> list[RunResult]:
    """Return one result per trial, in order.

    Raises: IsolationError when a language's tool is not installed on this machine, or its walls are too low; ValueError
    on malformed tests.
    """
    services = _services
    if services is not None:
        return services.run_many(trials)
    others = {trial.language for trial in trials} - {"python"}
    for language in others:
        require_tool(language)
    return api.run_many(trials, tools=_tool_pool() if others else None)


def modules() -> frozenset[str]:
    """Return the names that programs may import besides the standard library's.

    Raises: IsolationError if the programs run at services and none answers.
    """
    services = _services
    return api.default_pool().modules if services is None else services.modules()


def open_session(limits: Limits, quota: Quota) -> Session | RemoteSession:
    """Return a new session: of a service, which may lower limits and quota, or of this machine.

    Raises: IsolationError when the walls are too low; SessionError; ValueError when a service refuses it.
    """
    services = _services
    if services is not None:
        return services.session(limits=asdict(limits), quota=asdict(quota))
    return Session(_tool_pool(), limits=limits, quota=quota)


def require_tool(language: str) -> None:
    """Raise IsolationError if the tool of that language is not installed."""
    if not available().get(language, False):
        tool = LANGUAGES[language].tool
        raise IsolationError(f"language {language!r} needs {tool}, which is not installed here; install {tool}")


def _tool_pool() -> Pool:
    global _tools
    with _lock:
        if _tools is None:
            packages, python = _settings.packages, _settings.python
            _tools = Pool(_settings.workers, _settings.min_level, tools=TOOLS, packages=packages, python=python)
        return _tools
