"""The machines on which this process runs programs, and the limits of a program: set once, by the recipe."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from verizero.pipeline.errors import IsolationError
from verizero.sandbox import api, pool
from verizero.sandbox.results import Limits, RunResult, Trial
from verizero.sandbox.session import Session

if TYPE_CHECKING:
    from verizero.sandbox.client import Client

VARIABLE = "VERIZERO_SANDBOX"
"""Environment variable that hands the settings to a process that plays episodes."""
SESSION = "session"
"""The word that an environment names besides its languages if its programs keep a state in a session."""
NO_SESSIONS = (
    "sandbox.url: services run single programs, and the tool `session` keeps a state; drop sandbox.url to run sessions "
    "on this machine, or name the tools `python` and `shell`"
)


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


_settings = SandboxSettings()
_services: Client | None = None


def current() -> SandboxSettings:
    """Return the settings in use."""
    return _settings


def configure(settings: SandboxSettings) -> None:
    """Run programs by `settings` from now on; none may run meanwhile. Raises: ValueError for a wrong address."""
    global _settings, _services
    if settings == _settings:
        return
    services: Client | None = None
    if settings.urls:
        from verizero.sandbox.client import Client  # only here: a run on this machine alone loads no network code

        services = Client(settings.urls, settings.token)
    _settings, _services = settings, services
    packages = settings.packages if services is None else ()  # they are the services'
    pool.configure(settings.workers, settings.min_level, packages=packages)


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
    return api.run_many(trials)


def modules() -> frozenset[str]:
    """Return the names that programs may import besides the standard library's.

    Raises: IsolationError if the programs run at services and none answers.
    """
    services = _services
    return pool.default_pool().modules if services is None else services.modules()


def open_session(limits: Limits, calls: int) -> Session:
    """Return a new session of this machine. Raises: IsolationError when the walls are too low; SessionError."""
    if _services is not None:
        raise IsolationError(NO_SESSIONS)
    return Session(pool.default_pool().with_tools(), limits=limits, calls=calls)
