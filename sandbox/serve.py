"""The sandbox over HTTP: SandboxFusion's `/run_code` and `/submit`, a batch form, health and metrics.

`python -m sandbox.serve --port 8080`. Loopback unless told otherwise; any other address needs a token.
"""

from __future__ import annotations

import argparse
import hmac
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pipeline.errors import IsolationError, SessionError
from sandbox import http_format
from sandbox.api import Trial, run_many
from sandbox.calls import Quota
from sandbox.http_sessions import Sessions, UnknownSession
from sandbox.languages import TOOLS, available
from sandbox.pool import Pool
from sandbox.results import Limits, RunResult

_MAX_BODY = 64 << 20
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class RequestRefused(Exception):
    """A request that is answered with an HTTP status other than 200."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class SessionTerms:
    """The terms of a service's sessions: at most this quota each, so many at a time, closed when nobody calls them."""

    quota: Quota = field(default_factory=Quota)
    most: int = 256
    expires_s: float = 3600.0


class Service:
    """The state that all request handlers share: pool, limits, token, queue and counts."""

    def __init__(
        self, pool: Pool, limits: Limits, token: str | None, max_queue: int, sessions: SessionTerms | None = None
    ) -> None:
        terms = sessions or SessionTerms()
        self.sessions = Sessions(self.tools, limits, terms.quota, terms.most, terms.expires_s)
        self.pool, self.limits, self.token, self.max_queue = pool, limits, token, max_queue
        self.lock = threading.Lock()
        self._tools: Pool | None = None
        self.waiting = 0
        self.rejected = 0
        self.seconds = 0.0
        self.statuses: Counter[str] = Counter()

    def tools(self) -> Pool:
        """Return the pool for languages other than Python. It is made when first needed."""
        with self.lock:
            if self._tools is None:
                self._tools = Pool(self.pool.size, self.pool.min_level, tools=TOOLS)
            return self._tools

    def close(self) -> None:
        """End the sessions and the workers that the service has started."""
        self.sessions.close_all()
        with self.lock:
            tools, self._tools = self._tools, None
        if tools is not None:
            tools.close()

    def answer(self, path: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the reply to a POST. Raises: RequestRefused; ValueError on a malformed request."""
        act = self.acts().get(path)
        if act is None:
            raise RequestRefused(404, f"no {path}; there are {', '.join(self.acts())}, /health and /metrics")
        count = max(1, len(data.get("jobs", ()))) if isinstance(data, Mapping) else 1
        self._enter(count)
        begun = time.monotonic()
        try:
            return act(data)
        finally:
            with self.lock:
                self.waiting -= count
                self.seconds += time.monotonic() - begun

    def acts(self) -> dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]]:
        """Paths and what they do."""
        of = self.sessions
        return {"/run_code": self.run_code, "/submit": self.submit, "/run": self.run, "/run_many": self.run_many,
                "/sessions/open": of.open, "/sessions/call": of.call, "/sessions/fork": of.fork,
                "/sessions/close": of.close}  # fmt: skip

    def _enter(self, count: int) -> None:
        with self.lock:
            if self.waiting and self.waiting + count > self.max_queue:
                self.rejected += 1
                raise RequestRefused(429, f"{self.waiting} programs are queued of {self.max_queue}; come back later")
            self.waiting += count

    def run_code(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Run one program and return its output, in SandboxFusion's form."""
        language = http_format.language_of(data.get("language"))
        if not isinstance(data.get("code"), str):
            raise ValueError("code must be text")
        if data.get("files") or data.get("fetch_files"):
            raise ValueError("files and fetch_files are not supported; send the program's input as stdin")
        timeout, memory = data.get("run_timeout"), data.get("memory_limit_MB")
        asked = {"wall_s": timeout, "cpu_s": timeout, "memory_mib": memory if memory and memory > 0 else None}
        limits, stdin = self.limits.lowered(**asked), data.get("stdin") or ""
        (result,) = self._run(
            [Trial(data["code"], [{"input": stdin, "output": None}], "stdin", limits, False, language)]
        )
        return http_format.fusion_run(result.tests[0])

    def submit(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Run the code in a completion on the tests of the request, in SandboxFusion's form."""
        if not isinstance(data.get("completion"), str):
            raise ValueError("completion must be text")
        code, tests = http_format.code_in(data["completion"]), http_format.fusion_tests(data)
        config = data.get("config") or {}
        timeout, language = config.get("run_timeout"), http_format.language_of(config.get("language"))
        limits = self.limits.lowered(wall_s=timeout, cpu_s=timeout)
        (result,) = self._run([Trial(code, tests, "stdin", limits, False, language)])
        verdicts = [
            {"passed": t.passed, "exec_info": http_format.fusion_run(t), "test_info": test}
            for t, test in zip(result.tests, tests, strict=True)
        ]
        return {"id": data.get("id"), "accepted": result.passed, "extracted_code": code, "full_code": code,
                "test_code": None, "tests": verdicts, "extracted_type": None, "extra": None}  # fmt: skip

    def run(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Run one trial, in our own form."""
        return self.run_many({"jobs": [data]})["results"][0]  # type: ignore[no-any-return]

    def run_many(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Run several trials, in our own form, and return their results in order."""
        if not isinstance(data.get("jobs"), list):
            raise ValueError("jobs must be a list")
        trials = [http_format.trial_from_json(trial, self.limits) for trial in data["jobs"]]
        results = self._run(trials)
        return {"results": [http_format.result_to_json(r, j.values) for r, j in zip(results, trials, strict=True)]}

    def _run(self, trials: list[Trial]) -> list[RunResult]:
        others = {trial.language for trial in trials} - {"python"}
        missing = sorted(name for name in others if not available()[name])
        if missing:
            raise IsolationError(f"the tool of language {missing[0]!r} is not installed on this machine")
        results = run_many(trials, pool=self.pool, tools=self.tools() if others else None)
        with self.lock:
            self.statuses.update(r.status for r in results)
        return results

    def health(self) -> dict[str, Any]:
        """Return the isolation level, the walls and the languages. Raises: IsolationError if no program can run."""
        isolation = self.pool.isolation
        languages = sorted(name for name, there in available().items() if there)
        return {"status": "ok", "level": isolation.level, "walls": dict(isolation.stands), "languages": languages,
                "waiting": self.waiting}  # fmt: skip

    def metrics(self) -> str:
        """Return the counts as Prometheus text."""
        with self.lock:
            lines = [f'sandbox_programs_total{{status="{s}"}} {n}' for s, n in sorted(self.statuses.items())]
            lines += [
                f"sandbox_rejected_total {self.rejected}",
                f"sandbox_waiting {self.waiting}",
                f"sandbox_sessions {len(self.sessions)}",
                f"sandbox_seconds_total {self.seconds:.6f}",
                f"sandbox_workers {self.pool.size}",
                f"sandbox_isolation_level {self.pool.isolation.level}",
            ]
        return "# TYPE sandbox_programs_total counter\n" + "\n".join(lines) + "\n"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: Service

    def do_GET(self) -> None:
        if self.path == "/health":
            self._send(200, json.dumps(self.service.health()))
        elif self.path == "/metrics":
            self._send(200, self.service.metrics(), "text/plain; version=0.0.4")
        else:
            self._send(404, json.dumps({"error": f"no {self.path}"}))

    def do_POST(self) -> None:
        try:
            self._check_token()
            self._send(200, json.dumps(self.service.answer(self.path, self._body())))
        except RequestRefused as exc:
            self._send(exc.code, json.dumps({"error": str(exc)}))
        except UnknownSession as exc:
            self._send(410, json.dumps({"error": str(exc)}))
        except SessionError as exc:  # infrastructure: the client must not take it for an answer
            self._send(502, json.dumps({"error": str(exc)}))
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            self._send(422, json.dumps({"error": f"{type(exc).__name__}: {exc}"}))
        except IsolationError as exc:
            self._send(503, json.dumps({"error": str(exc)}))

    def _check_token(self) -> None:
        token, wanted = self.headers.get("Authorization", "").removeprefix("Bearer "), self.service.token
        if wanted is not None and not hmac.compare_digest(token.encode(), wanted.encode()):
            self.close_connection = True
            raise RequestRefused(401, "the Authorization header must be: Bearer <token>")

    def _body(self) -> Mapping[str, Any]:
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 < length <= _MAX_BODY:
            self.close_connection = True
            raise RequestRefused(413, f"the body must have 1 to {_MAX_BODY} bytes, Content-Length is {length}")
        data = json.loads(self.rfile.read(length))
        if not isinstance(data, dict):
            raise ValueError("the body must be a JSON object")
        return data

    def _send(self, code: int, text: str, kind: str = "application/json") -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if code == 429:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: requests are counted in the metrics."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    service: Service | None = None

    def server_close(self) -> None:
        """Close the socket, and end the workers for other languages."""
        super().server_close()
        if self.service is not None:
            self.service.close()


def make_server(
    pool: Pool,
    host: str = "127.0.0.1",
    port: int = 8080,
    token: str | None = None,
    max_queue: int = 1024,
    limits: Limits | None = None,
    sessions: SessionTerms | None = None,
) -> ThreadingHTTPServer:
    """Return a server that is bound but not yet serving. No request gets more than `limits`.

    Raises: ValueError when `host` is not loopback and there is no token; IsolationError when the walls are too low.
    """
    if host not in _LOOPBACK and not token:
        raise ValueError(f"host {host!r} is open to others: set a token, or serve on 127.0.0.1")
    service = Service(pool, limits or Limits(), token, max_queue, sessions)
    service.health()
    server = _Server((host, port), type("Handler", (_Handler,), {"service": service}))
    server.service = service
    return server


def main(arguments: list[str] | None = None) -> None:
    """Serve until interrupted. The token comes from SANDBOX_TOKEN, so that no process list shows it."""
    parser = argparse.ArgumentParser(prog="verizero sandbox serve", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--workers", type=int, default=None, help="default: two per core")
    parser.add_argument("--min-level", type=int, default=2)
    parser.add_argument("--max-queue", type=int, default=1024, help="programs waiting before 429")
    settings = parser.parse_args(arguments)
    with Pool(settings.workers, settings.min_level) as pool:
        server = make_server(pool, settings.host, settings.port, os.environ.get("SANDBOX_TOKEN"), settings.max_queue)
        print(f"sandbox at level {pool.isolation.level} on http://{settings.host}:{server.server_port}", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            server.server_close()


if __name__ == "__main__":
    main()
