"""Run programs on other machines: the calls of `sandbox`, sent to one or more HTTP services."""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from verizero.pipeline.errors import IsolationError, SessionError
from verizero.pipeline.own_requests import MAX_BODY, open_url
from verizero.sandbox import http_format
from verizero.sandbox.api import Tests, Trial, refused
from verizero.sandbox.calls import CallResult
from verizero.sandbox.results import Limits, Mode, RunResult

_PAUSE_S = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0)
"""Seconds between two tries: a service that is started again may take some to answer."""
_AVOID_S = 5.0
_MALFORMED = (400, 401, 403, 404, 413, 421, 422)
"""HTTP statuses of requests that every service would refuse."""


class Client:
    """Sends each program to the service that has the fewest of ours, and to another if that one fails.

    Every service must have the languages of the programs. A program that no service could run after several tries has
    status "sandbox_error", which is no verdict about it.
    """

    def __init__(
        self, urls: str | Sequence[str], token: str | None = None, timeout_s: float = 300.0, parallel: int = 32
    ) -> None:
        self.urls = [u.rstrip("/") for u in ([urls] if isinstance(urls, str) else urls)]
        if not self.urls or not all(u.startswith(("http://", "https://")) for u in self.urls):
            raise ValueError(f"sandbox.url must be one or more http(s) addresses, got {urls!r}")
        self.token, self.timeout_s, self.parallel = token, timeout_s, parallel
        self._lock = threading.Lock()
        self._num_requests = dict.fromkeys(self.urls, 0)
        self._avoid_until = dict.fromkeys(self.urls, 0.0)

    def run(
        self,
        program: str,
        tests: Tests,
        *,
        mode: Mode = "stdin",
        limits: Limits | None = None,
        stop_on_failure: bool = False,
    ) -> RunResult:
        """Return the result as `sandbox.run` does. Without `limits` they are the service's own.

        Raises: ValueError on tests that the service calls malformed, and on limits above the service's.
        """
        trial = http_format.trial_to_json(Trial(program, tests, mode, limits or Limits(), stop_on_failure))
        if limits is None:
            del trial["limits"]
        return self._run_trial(trial, len(tests))

    def run_many(self, trials: Iterable[Trial]) -> list[RunResult]:
        """Return one result per trial, in order. A trial that cannot be sent or run has the status "sandbox_error"."""
        trials = list(trials)
        if not trials:
            return []
        with ThreadPoolExecutor(min(self.parallel, len(trials)), "sandbox-client") as threads:
            return list(threads.map(self._result, trials))

    def _result(self, trial: Trial) -> RunResult:
        try:
            return self._run_trial(http_format.trial_to_json(trial), len(trial.tests))
        except Exception as exc:  # whatever is wrong with it, it touches no other
            return refused(trial, exc)

    def session(self, **settings: Any) -> RemoteSession:
        """Open a session on one service, which serves all of its calls. `settings` are those of `Session`.

        Raises: ValueError when the service refuses it; SessionError when none answers.
        """
        last_error = ""
        for _ in self.urls:
            url = self._least_busy_url()
            try:
                reply = self.ask(url, "open", settings)
                return RemoteSession(self, url, reply["session"], reply["level"])
            except SessionError as exc:
                last_error = str(exc)
                with self._lock:
                    self._avoid_until[url] = time.monotonic() + _AVOID_S
            finally:
                with self._lock:
                    self._num_requests[url] -= 1
        raise SessionError(f"no service opens a session; the last error: {last_error}")

    def ask(self, url: str, act: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return a service's reply to a request for a session. It is never repeated: a call changes its session.

        Raises: ValueError when the service calls the request malformed; SessionError on any other failure.
        """
        try:
            return self._post(f"{url}/sessions/{act}", json.dumps(body).encode())
        except urllib.error.HTTPError as exc:
            last_error = f"{url}: {exc.code} {exc.read(500).decode(errors='replace')}"
            if exc.code in _MALFORMED:
                raise ValueError(last_error) from exc
            raise SessionError(last_error) from exc
        except (OSError, TypeError, ValueError) as exc:
            raise SessionError(f"{url}: {type(exc).__name__}: {exc}") from exc

    def modules(self) -> frozenset[str]:
        """Return the names that programs may import besides the standard library's at every service that answers.

        Raises: IsolationError if none answers.
        """
        answers, silent = list[frozenset[str]](), list[str]()
        for url in self.urls:
            try:
                answers.append(frozenset(self._ask(urllib.request.Request(f"{url}/health"))["modules"]))
            except (OSError, ValueError, KeyError, TypeError) as exc:
                silent.append(f"{url} ({type(exc).__name__}: {exc})")
        if not answers:
            raise IsolationError(f"sandbox.url: no service says which packages it has: {'; '.join(silent)}")
        return frozenset.intersection(*answers)

    def _run_trial(self, trial: dict[str, Any], num_tests: int) -> RunResult:
        body = json.dumps(trial).encode()
        if len(body) > MAX_BODY:
            raise ValueError(
                f"a program with {num_tests} tests has {len(body)} bytes as JSON, and a service takes {MAX_BODY}; "
                "send fewer or smaller tests, or run it on this machine"
            )
        last_error = ""
        for pause in (*_PAUSE_S, None):
            url = self._least_busy_url()
            try:
                return http_format.result_from_json(self._post(f"{url}/run", body))
            except urllib.error.HTTPError as exc:
                last_error = f"{url}: {exc.code} {exc.read(500).decode(errors='replace')}"
                if exc.code in _MALFORMED:
                    raise ValueError(last_error) from exc
            except (OSError, ValueError, KeyError, TypeError) as exc:
                last_error = f"{url}: {type(exc).__name__}: {exc}"
                with self._lock:
                    self._avoid_until[url] = time.monotonic() + _AVOID_S
            finally:
                with self._lock:
                    self._num_requests[url] -= 1
            if pause is not None:
                time.sleep(pause)
        return RunResult.failed(f"no service answered; the last error: {last_error}", max(1, num_tests), 0)

    def _least_busy_url(self) -> str:
        with self._lock:
            now = time.monotonic()
            url = min(self.urls, key=lambda u: (self._avoid_until[u] > now, self._num_requests[u]))
            self._num_requests[url] += 1
            return url

    def _post(self, url: str, body: bytes) -> dict[str, Any]:
        return self._ask(urllib.request.Request(url, body, {"Content-Type": "application/json"}))

    def _ask(self, request: urllib.request.Request) -> dict[str, Any]:
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        with open_url(request, self.timeout_s) as reply:
            data = json.load(reply)
        if not isinstance(data, dict):
            raise TypeError("the reply is no JSON object")
        return data


class RemoteSession:
    """A session on another machine, with the calls of `sandbox.Session`."""

    def __init__(self, client: Client, url: str, name: str, level: int) -> None:
        self._client, self._url, self._name, self.level = client, url, name, level

    def python(self, code: str, *, wall_s: float | None = None, cpu_s: float | None = None) -> CallResult:
        """Run a cell. Raises: ValueError; SessionError."""
        return CallResult(**self._call("python", code=code, wall_s=wall_s, cpu_s=cpu_s))

    def shell(self, line: str, *, wall_s: float | None = None, cpu_s: float | None = None) -> CallResult:
        """Run a line of Bash. Raises: ValueError; SessionError."""
        return CallResult(**self._call("shell", line=line, wall_s=wall_s, cpu_s=cpu_s))

    def write(self, path: str, data: bytes | str) -> None:
        """Write a file. Raises: ValueError; SessionError."""
        content = data.encode() if isinstance(data, str) else data
        self._call("write", path=path, data=base64.b64encode(content).decode())

    def read(self, path: str) -> bytes:
        """Return a file's bytes. Raises: ValueError; SessionError."""
        return base64.b64decode(self._call("read", path=path)["data"])

    def close(self) -> None:
        """Close the session. Raises: SessionError when the service does not answer."""
        self._client.ask(self._url, "close", {"session": self._name})

    def __enter__(self) -> RemoteSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, kind: str, **fields: Any) -> dict[str, Any]:
        return self._client.ask(self._url, "call", {"session": self._name, "kind": kind, **fields})
