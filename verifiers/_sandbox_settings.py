"""Where the programs of this process run, and what each may use: said once, by the recipe, for all verifiers."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import sandbox
from pipeline.errors import IsolationError
from sandbox.languages import LANGUAGES, TOOLS


@dataclass(frozen=True, slots=True)
class Place:
    """Services at `urls`, else the workers of this machine."""

    limits: sandbox.Limits = field(default_factory=sandbox.Limits)
    """Of a program whose verifier names none."""
    workers: int | None = None
    """Programs at one time on this machine; None is two per core."""
    min_level: int = 2
    urls: tuple[str, ...] = ()
    token: str | None = field(default=None, repr=False)


class Runs(Protocol):
    """What runs programs: the sandbox of this process, or a client of services."""

    def __call__(self, jobs: Sequence[sandbox.Job]) -> list[sandbox.RunResult]:
        """One result per job, in order."""
        ...


_lock = threading.Lock()
_place = Place()
_services: Runs | None = None
_tools: sandbox.Pool | None = None


def current() -> Place:
    """The place that programs run at."""
    return _place


def settle(place: Place) -> None:
    """Run the programs of this process at `place` from now on. Not while programs run: former workers are ended.

    Raises: ValueError for an address that is none.
    """
    global _place, _services, _tools
    if place == _place:
        return
    services: Runs | None = None
    if place.urls:
        from sandbox.client import Client  # only here: who runs programs on this machine loads no network

        services = Client(place.urls, place.token).run_many
    with _lock:
        former, _tools = _tools, None
        _place, _services = place, services
    if former is not None:
        former.close()
    sandbox.configure(place.workers, place.min_level)


def run(jobs: Sequence[sandbox.Job]) -> list[sandbox.RunResult]:
    """One result per job, in order.

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
    """Raises: IsolationError when the tool of that language is not installed."""
    if not sandbox.available().get(language, False):
        tool = LANGUAGES[language].tool
        raise IsolationError(f"language {language!r} needs {tool}, which is not installed here; install {tool}")


def _tool_pool() -> sandbox.Pool:
    global _tools
    with _lock:
        if _tools is None:
            _tools = sandbox.Pool(_place.workers, _place.min_level, tools=TOOLS)
        return _tools
