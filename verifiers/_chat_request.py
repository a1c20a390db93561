"""One request to an OpenAI-compatible endpoint, tried again where the failure may pass."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from pipeline.errors import GradingError

RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


def chat(
    url: str,
    body: Mapping[str, Any],
    *,
    api_key_variable: str | None,
    timeout_s: float,
    retries: int,
    backoff_s: float,
    what: str,
) -> dict[str, Any]:
    """Return the first choice of the reply to a chat completion, which has a text at ["message"]["content"].

    `what` names the endpoint in errors. Raises: GradingError when all tries failed, or the key is not set.
    """
    key = os.environ.get(api_key_variable, "") if api_key_variable else ""
    if api_key_variable and not key:
        raise GradingError(f"environment variable {api_key_variable} is empty; it must hold the {what}'s key")
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    address, wait = url.rstrip("/") + "/chat/completions", backoff_s
    for left in range(retries, -1, -1):  # tries that are left after this one
        try:
            request = urllib.request.Request(address, json.dumps(body).encode(), headers)
            with urllib.request.urlopen(request, timeout=timeout_s) as response:
                choice: dict[str, Any] = json.load(response)["choices"][0]
                choice["message"]["content"] = str(choice["message"]["content"])
                return choice
        except urllib.error.HTTPError as exc:
            problem, again = f"HTTP {exc.code}", exc.code in RETRIED
        except (OSError, ValueError, KeyError, IndexError, TypeError) as exc:
            problem, again = f"{type(exc).__name__}: {exc}", True
        if not again or left == 0:
            break
        time.sleep(wait)
        wait *= 2
    raise GradingError(f"{what} at {url} failed after {retries - left + 1} tries: {problem}")
