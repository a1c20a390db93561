"""The sandbox of a run: settled once, before anything is trained, and refused where it cannot be trusted."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterable
from typing import Any

import sandbox
from pipeline.config.sandbox import SandboxConfig
from pipeline.errors import ConfigError, IsolationError
from pipeline.report.progress import Progress
from pipeline.scoring.score import Bound
from verifiers import _sandbox_settings
from verifiers._sandbox_jobs import programs_of
from verifiers.base import BoundVerifier

PATIENCE_S = 10.0
"""For one service to say what it is."""


def open_sandbox(config: SandboxConfig, verifiers: Iterable[Bound], progress: Progress) -> dict[str, Any] | None:
    """What stands around the programs of this run, for run.json; None where no verifier runs any.

    From here on the process runs programs as the recipe says. `verifiers`: those in use.
    Raises: IsolationError where walls are too low, a tool is missing or no service answers; ConfigError for the token.
    """
    place = place_of(config)
    _sandbox_settings.configure(place)
    used = [p for bound in verifiers if isinstance(bound, BoundVerifier) for p in programs_of(bound.params)]
    if not used:
        return None
    languages = {str(getattr(p, "language", "python")) for p in used}
    return _services(place, languages, progress) if place.urls else _this_machine(languages)


def close_sandbox() -> None:
    """Later runs of this process begin with the sandbox's own settings; workers end."""
    _sandbox_settings.configure(_sandbox_settings.SandboxSettings())


def place_of(config: SandboxConfig) -> _sandbox_settings.SandboxSettings:
    """Where a recipe's programs run. Raises: ConfigError for a token that is in no variable."""
    token = None
    if config.token_env is not None:
        token = os.environ.get(config.token_env)
        if not token:
            raise ConfigError(f"sandbox.token_env names {config.token_env!r}, which is not set; export it, or drop it")
    limits = sandbox.Limits(**config.limits)  # type: ignore[arg-type]
    urls = tuple(url.rstrip("/") for url in config.urls)
    return _sandbox_settings.SandboxSettings(limits, config.workers, config.min_level, urls, token)


def _this_machine(languages: Iterable[str]) -> dict[str, Any]:
    for language in languages:
        _sandbox_settings.require_tool(language)
    isolation = sandbox.default_pool().isolation
    return {"level": isolation.level, "stands": dict(isolation.stands), "notes": dict(isolation.notes)}


def _services(place: _sandbox_settings.SandboxSettings, languages: set[str], progress: Progress) -> dict[str, Any]:
    levels: dict[str, int] = {}
    silent: dict[str, str] = {}
    for url in place.urls:
        try:
            health = _ask(f"{url}/health", place.token)
            levels[url], lacks = int(health["level"]), sorted(languages - {"python", *health["languages"]})
            if lacks:
                raise IsolationError(
                    f"the sandbox at {url} has no {', '.join(lacks)}; install what runs it there, or drop the address"
                )
            _ask(f"{url}/run_many", place.token, b'{"jobs": []}')
        except urllib.error.HTTPError as exc:
            if exc.code == 401:
                raise ConfigError(
                    f"sandbox.url {url} refuses the token; set sandbox.token_env to its variable"
                ) from exc
            silent[url] = f"status {exc.code}"
        except (OSError, ValueError, KeyError, TypeError) as exc:
            silent[url] = f"{type(exc).__name__}: {exc}"
    troubles = "; ".join(f"{url} ({why})" for url, why in silent.items())
    if not levels:
        raise IsolationError(
            f"sandbox.url: no service answers: {troubles}. Start `verizero sandbox serve` there, or drop "
            "sandbox.url to run programs on this machine"
        )
    if silent:
        progress.say(f"sandbox.url: some services do not answer, programs go to the others: {troubles}")
    for url, level in levels.items():
        if level < place.min_level:
            raise IsolationError(
                f"the sandbox at {url} stands at level {level} and sandbox.min_level is {place.min_level}; serve it "
                f"from a machine that has the walls, or set sandbox.min_level to {level}"
            )
    return {"level": min(levels.values()), "services": levels}


def _ask(url: str, token: str | None, body: bytes | None = None) -> Any:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=PATIENCE_S) as reply:
        return json.load(reply)
