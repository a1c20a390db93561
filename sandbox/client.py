"""Run programs on other machines: the calls of `sandbox`, sent to one or more HTTP services."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from verizero.pipeline.errors import IsolationError
from verizero.pipeline.host.network import MAX_BODY, open_url
from verizero.sandbox.api import refused
from verizero.sandbox.results import Limits, RunResult, TestResult, Tests, Trial
from verizero.sandbox.worker import codec

_PAUSE_S = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0)
"""Seconds between two tries: a service that is started again may take some to answer."""
_AVOID_S = 5.0
JSON = {"Content-Type": "application/json"}
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

    def run_many(self, trials: Iterable[Trial]) -> list[RunResult]:
        """Return one result per trial, in order. A trial that cannot be sent or run has the status "sandbox_error"."""
        trials = list(trials)
        if not trials:
            return []
        with ThreadPoolExecutor(min(self.parallel, len(trials)), "sandbox-client") as threads:
            return list(threads.map(self._result, trials))

    def _result(self, trial: Trial) -> RunResult:
        try:
            return self._run_trial(trial_to_json(trial), len(trial.tests))
        except Exception as exc:  # whatever is wrong with it, it touches no other
            return refused(trial, exc)

    def modules(self) -> frozenset[str]:
        """Return the importable names that every answering service has. Raises: IsolationError if none answers."""
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
            with self._lock:
                now = time.monotonic()
                url = min(self.urls, key=lambda u: (self._avoid_until[u] > now, self._num_requests[u]))
                self._num_requests[url] += 1
            try:
                reply = self._ask(urllib.request.Request(f"{url}/run", body, JSON))
                tests = tuple(_test_from_json(t) for t in reply["tests"])
                return RunResult(tests, reply["level"], reply["num_tests"], reply["wall_s"])
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

    def _ask(self, request: urllib.request.Request) -> dict[str, Any]:
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        with open_url(request, self.timeout_s) as reply:
            data = json.load(reply)
        if not isinstance(data, dict):
            raise TypeError("the reply is no JSON object")
        return data


def trial_to_json(trial: Trial) -> dict[str, Any]:
    """Return the trial with encoded tests, since JSON alone would lose tuples, sets and integer keys."""
    return {
        # A program with half of a surrogate pair is no program, here or there; JSON cannot carry it.
        "program": trial.program.encode("utf-8", "replace").decode(),
        "encoded_tests": codec.encode([dict(t) for t in trial.tests]).decode("ascii"),
        "mode": trial.mode,
        "limits": {name: getattr(trial.limits, name) for name in Limits.__dataclass_fields__},
        "stop_on_failure": trial.stop_on_failure,
        "language": trial.language,
    }


def result_to_json(result: RunResult, tests: Tests) -> dict[str, Any]:
    """Return the result of a program on `tests` as JSON.

    Returned values are sent, encoded, of tests that expect None or nothing, and of the first test that failed.
    """
    names = ("status", "stdout", "error", "cpu_s", "wall_s", "peak_mib")
    results = [{name: getattr(test, name) for name in names} for test in result.tests]
    first = next((i for i, test in enumerate(result.tests) if not test.passed), None)
    for i, (test, done) in enumerate(zip(tests, result.tests, strict=False)):
        if i == first or test.get("expected") is None:
            results[i]["encoded_value"] = done.encoded.decode("ascii")
    return {
        "passed": result.passed,
        "status": result.status,
        "level": result.level,
        "num_tests": result.num_tests,
        "wall_s": result.wall_s,
        "tests": results,
    }


def _test_from_json(data: Mapping[str, Any]) -> TestResult:
    fields = dict(data)
    encoded = fields.pop("encoded_value", "").encode("ascii")
    if encoded:
        codec.read(encoded)  # a service that sends what nobody can read has failed, and is not asked for it later
    return TestResult(**fields, encoded=encoded)
