"""Sets up the sandbox of a run, once, before training; raises an error if its isolation is too weak."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any

from verizero import sandbox
from verizero.pipeline.config.sandbox import SandboxConfig
from verizero.pipeline.errors import ConfigError, IsolationError
from verizero.pipeline.host.network import open_url
from verizero.sandbox.languages import require_tool
from verizero.sandbox.settings import NO_SESSIONS, SESSION, SandboxSettings, configure
from verizero.verifiers._sandbox_jobs import programs_of
from verizero.verifiers.base import BoundVerifier

TIMEOUT_S = 10.0
"""Seconds that a service has to answer."""


def open_sandbox(
    config: SandboxConfig, verifiers: Iterable[object], say: Callable[[str], None], played: Iterable[str] = ()
) -> dict[str, Any] | None:
    """Set up where this process runs programs, as the recipe says; return the isolation for run.json.

    `played`: the languages of programs that environments run. Returns None if neither they nor `verifiers` run any.
    `say` shows warnings.
    Raises: IsolationError if walls are too low, a tool is missing or no service answers; ConfigError for the token.
    """
    settings = use_sandbox(config)
    used = [p for v in verifiers if isinstance(v, BoundVerifier) for p in programs_of(v.params)]
    languages = {str(getattr(p, "language", "python")) for p in used} | set(played)
    if SESSION in languages and settings.urls:
        raise ConfigError(NO_SESSIONS)
    languages.discard(SESSION)
    if not languages:
        return None
    if settings.urls:
        return _services(settings, languages, say)
    for language in languages:
        require_tool(language)
    isolation = sandbox.default_pool().isolation
    return {"level": isolation.level, "stands": dict(isolation.stands), "notes": dict(isolation.notes)}


def use_sandbox(config: SandboxConfig) -> SandboxSettings:
    """Run the programs of this process as the recipe says, and return how. Call it before rows are read.

    Raises: ConfigError for the token, and for a package that is not installed.
    """
    settings = settings_of(config)
    configure(settings)
    return settings


def close_sandbox() -> None:
    """End the sandbox's workers, and give later runs of this process the default settings."""
    configure(SandboxSettings())


def settings_of(config: SandboxConfig) -> SandboxSettings:
    """Return the sandbox's settings by a recipe. Raises: ConfigError if the token's variable is not set."""
    token = None
    if config.token_env is not None:
        token = os.environ.get(config.token_env)
        if not token:
            raise ConfigError(f"sandbox.token_env names {config.token_env!r}, which is not set; export it, or drop it")
    limits = sandbox.Limits(**config.limits)  # type: ignore[arg-type]
    urls = tuple(url.rstrip("/") for url in config.urls)
    return SandboxSettings(limits, config.workers, config.min_level, urls, token, packages=config.packages)


def _services(settings: SandboxSettings, languages: set[str], say: Callable[[str], None]) -> dict[str, Any]:
    levels: dict[str, int] = {}
    silent: dict[str, str] = {}  # URL -> why the service cannot be used
    for url in settings.urls:
        try:
            health = _ask(f"{url}/health", settings.token)
            levels[url], lacks = int(health["level"]), sorted(languages - {"python", *health["languages"]})
            if lacks:
                raise IsolationError(
                    f"the sandbox at {url} has no {', '.join(lacks)}; install what runs it there, or drop the address"
                )
            if missing := sorted(set(settings.packages) - set(health["packages"])):
                raise ConfigError(
                    f"sandbox.packages: the sandbox at {url} has no {missing[0]}; start it with --packages "
                    f"{','.join(settings.packages)}"
                )
        except urllib.error.HTTPError as exc:
            # A wrong token is an error of the recipe, not a service that happens to be down.
            if exc.code == 401:
                raise ConfigError(
                    f"sandbox.url {url} refuses the token; set sandbox.token_env to its variable"
                ) from exc
            silent[url] = f"status {exc.code}"
        except (OSError, ValueError, KeyError, TypeError) as exc:
            silent[url] = f"{type(exc).__name__}: {exc}"
    troubles = "; ".join(f"{url} ({reason})" for url, reason in silent.items())
    if not levels:
        raise IsolationError(
            f"sandbox.url: no service answers: {troubles}. Start `verizero sandbox serve` there, or drop "
            "sandbox.url to run programs on this machine"
        )
    if silent:
        say(f"sandbox.url: some services do not answer, programs go to the others: {troubles}")
    for url, level in levels.items():
        if level < settings.min_level:
            raise IsolationError(
                f"the sandbox at {url} has isolation level {level} and sandbox.min_level is {settings.min_level}; "
                f"serve it from a machine with higher walls, or set sandbox.min_level to {level}"
            )
    return {"level": min(levels.values()), "services": levels}


def _ask(url: str, token: str | None) -> Any:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with open_url(urllib.request.Request(url, headers=headers), TIMEOUT_S) as reply:
        return json.load(reply)
