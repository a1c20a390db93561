"""Requests to OpenAI-compatible endpoints, repeated if a failure may be temporary."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from verizero.pipeline.errors import GradingError
from verizero.pipeline.host.network import open_url

T = TypeVar("T")
SHOWN = 300
"""Maximum of bytes of a refusal that an error shows."""
RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


class Service(Protocol):
    """An endpoint in a recipe."""

    @property
    def api_key_variable(self) -> str | None:
        """The environment variable that holds the key."""

    @property
    def timeout_s(self) -> float:
        """Seconds of a try."""

    @property
    def retries(self) -> int:
        """Tries after the first."""


def chat(url: str, body: Mapping[str, Any], service: Service, what: str, backoff_s: float = 1.0) -> dict[str, Any]:
    """Return the first choice of the reply to a chat completion, which has a text at ["message"]["content"].

    `what` names the endpoint in errors. `backoff_s`: the wait before the first retry, which doubles.
    Raises: GradingError when all tries failed, or the key is not set.
    """

    def read(choice: dict[str, Any]) -> dict[str, Any]:
        choice["message"]["content"] = str(choice["message"]["content"])
        return choice

    return first_choice(f"{url.rstrip('/')}/chat/completions", body, read, service, f"{what} at {url}", backoff_s)


def first_choice(
    address: str, body: Mapping[str, Any], read: Callable[[dict[str, Any]], T], service: Service, what: str,
    backoff_s: float,
) -> T:  # fmt: skip
    """Return `read(first choice)` of the reply; try again if it fails. Raises: GradingError when all tries failed."""
    key = os.environ.get(service.api_key_variable, "") if service.api_key_variable else ""
    if service.api_key_variable and not key:
        raise GradingError(f"environment variable {service.api_key_variable} is empty; give it the key of the {what}")
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    wait = backoff_s
    for tries_left in range(service.retries, -1, -1):  # tries that are left after this one
        try:
            request = urllib.request.Request(address, json.dumps(body).encode(), headers)
            with open_url(request, service.timeout_s) as response:
                return read(json.load(response)["choices"][0])
        except urllib.error.HTTPError as exc:
            why = f": {exc.reason}" if 300 <= exc.code < 400 else _refusal_text(exc)
            problem, again = f"HTTP {exc.code}{why}", exc.code in RETRIED
        except (OSError, ValueError, KeyError, IndexError, TypeError) as exc:
            problem, again = f"{type(exc).__name__}: {exc}", True
        if not again or tries_left == 0:
            break
        time.sleep(wait)
        wait *= 2
    raise GradingError(f"{what} failed after {service.retries - tries_left + 1} tries: {problem}")


def _refusal_text(refusal: urllib.error.HTTPError) -> str:
    """Return the beginning of the refusal's text in brackets; empty if it has none."""
    try:
        text = refusal.read(SHOWN).decode(errors="replace").strip()
    except OSError:
        return ""
    return f" ({text})" if text else ""
