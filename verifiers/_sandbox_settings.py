"""The machines on which this process runs programs, and the limits of a program: set once, by the recipe."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import sandbox
from pipeline.errors import IsolationError
from sandbox.languages import LANGUAGES, TOOLS


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """The sandbox of this process: services at `urls`, or without any the workers of this machine."""

    limits: sandbox.Limits = field(default_factory=sandbox.Limits)
    """Limits of a program whose verifier sets none."""
    workers: int | None = None
    """Programs at one time on this machine; None is two per core."""
    min_level: int = 2
    urls: tuple[str, ...] = ()
    token: str | None = field(default=None, repr=False)


class Runs(Protocol):
    """A function that runs programs: the sandbox of this process, or a client of services."""

    def __call__(self, trials: Sequence[sandbox.Trial]) -> list[sandbox.RunResult]:
        """Return one result per job, in order."""
        ...


_lock = threading.Lock()
_settings = SandboxSettings()
_services: Runs | None = None
_tools: sandbox.Pool | None = None


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
    services: Runs | None = None
    if settings.urls:
        from sandbox.client import Client  # only here: a run on this machine alone loads no network code

        services = Client(settings.urls, settings.token).run_many
    with _lock:
        former, _tools = _tools, None
        _settings, _services = settings, services
    if former is not None:
        former.close()
    sandbox.configure(settings.workers, settings.min_level)


def run(jobs: Sequence[sandbox.Trial]) -> list[sandbox.RunResult]:
    """Return one result per job, in order.

    Raises: IsolationError when a language's tool is not installed on this machine, or its walls are too low; ValueError
    on malformed tests.
    """
    services = _services
    if services is not None:
        return services(jobs)
    others = {job.language for job in jobs} - {"python"}
    for language in others:
        require_tool(language)
    return sandbox.run_many(jobs, tools=_tool_pool() if others else None)


def require_tool(language: str) -> None:
    """Raise IsolationError if the tool of that language is not installed."""
    if not sandbox.available().get(language, False):
        tool = LANGUAGES[language].tool
        raise IsolationError(f"language {language!r} needs {tool}, which is not installed here; install {tool}")


def _tool_pool() -> sandbox.Pool:
    global _tools
    with _lock:
        if _tools is None:
            _tools = sandbox.Pool(_settings.workers, _settings.min_level, tools=TOOLS)
        return _tools
