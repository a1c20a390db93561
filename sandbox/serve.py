"""The sandbox over HTTP: SandboxFusion's `/run_code` and `/submit`, our own form, sessions, health and metrics."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from verizero.pipeline.errors import IsolationError, SessionError
from verizero.pipeline.service import Refused, Service, checked, parsed
from verizero.sandbox import http_format
from verizero.sandbox.api import Trial, check, run_many
from verizero.sandbox.calls import Quota
from verizero.sandbox.http_requests import (
    CallRequest,
    Job,
    Jobs,
    OpenRequest,
    RunCode,
    SessionRequest,
    Submit,
    SubmitConfig,
    fusion_limits,
)
from verizero.sandbox.http_sessions import Sessions, UnknownSession
from verizero.sandbox.languages import TOOLS, available
from verizero.sandbox.pool import Pool
from verizero.sandbox.results import Limits, RunResult

MOST = Limits(wall_s=60, cpu_s=30, memory_mib=1024, output_kib=16384, disk_mib=64, processes=64, max_tests=10_000)
"""The most that a request may ask for, where the service is not told. It is above the defaults of SandboxFusion."""
Act = tuple[type[BaseModel], Callable[[Any], dict[str, Any]]]
"""The form of a request, and the function that answers it."""


@dataclass(frozen=True, slots=True)
class SessionTerms:
    """The limits of a service's sessions: the most quota of each, number, and seconds until an idle one is closed."""

    quota: Quota = field(default_factory=lambda: Quota(calls=10_000, cpu_s=3600.0, disk_mib=64, idle_s=3600.0))
    max_sessions: int = 256
    expires_s: float = 3600.0


class SandboxService(Service):
    """Serves the sandbox at an address: a pool runs the clients' programs, with limits and a bounded queue."""

    def __init__(
        self,
        pool: Pool,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        max_queue: int = 1024,
        limits: Limits | None = None,
        sessions: SessionTerms | None = None,
    ) -> None:
        """Bind the address. No request may ask for more than `limits`, by default `MOST`.

        Raises: ValueError for a queue without room; IsolationError when the walls are too low; OSError.
        """
        if max_queue < 1:
            raise ValueError(f"max_queue must be at least 1, got {max_queue}")
        terms, self.limits = sessions or SessionTerms(), limits or MOST
        self.sessions = Sessions(self.tools, self.limits, terms.quota, terms.max_sessions, terms.expires_s)
        self.pool, self.max_queue, self.lock = pool, max_queue, threading.Lock()
        self._tools: Pool | None = None
        self.waiting = 0
        self.rejected = 0
        self.seconds = 0.0
        self.statuses: Counter[str] = Counter()
        self.acts: dict[str, Act] = {
            "/run_code": (RunCode, self.run_code),
            "/submit": (Submit, self.submit),
            "/run": (Job, self.run_one),
            "/run_many": (Jobs, self.run_many),
            "/sessions/open": (OpenRequest, self.sessions.open),
            "/sessions/call": (CallRequest, self.sessions.call),
            "/sessions/close": (SessionRequest, self.sessions.close),
        }
        self.health()
        super().__init__(self.respond, host, port, token)

    def tools(self) -> Pool:
        """Return the pool for languages other than Python. It is made when first needed."""
        with self.lock:
            if self._tools is None:
                like = self.pool
                self._tools = Pool(like.size, like.min_level, tools=TOOLS, packages=like.packages, python=like.python)
            return self._tools

    def close(self) -> None:
        """End the service, its sessions, and the workers that it has started."""
        super().close()
        self.sessions.close_all()
        with self.lock:
            tools, self._tools = self._tools, None
        if tools is not None:
            tools.close()

    def respond(self, request: Request, body: bytes) -> Response:
        """Return the reply to a request. Raises: Refused."""
        place = (request.method, request.url.path)
        if place == ("GET", "/metrics"):
            return PlainTextResponse(self.metrics(), media_type="text/plain; version=0.0.4")
        try:
            answer = self.health() if place == ("GET", "/health") else self._act(*place, body)
        except UnknownSession as exc:
            raise Refused(410, str(exc)) from exc
        except SessionError as exc:  # infrastructure failed: this must not look like an answer
            raise Refused(502, str(exc)) from exc
        except IsolationError as exc:
            raise Refused(503, str(exc)) from exc
        except ValueError as exc:
            raise Refused(422, str(exc)) from exc
        return Response(json.dumps(answer), media_type="application/json")

    def _act(self, method: str, path: str, body: bytes) -> dict[str, Any]:
        """Answer a POST request, if the queue has room. Raises: Refused; ValueError."""
        if path not in self.acts or method != "POST":
            raise Refused(404, f"no {method} {path}; POST {', '.join(self.acts)}, or GET /health and /metrics")
        form, act = self.acts[path]
        request = checked(form, parsed(body), 422)
        count = len(request.jobs) if isinstance(request, Jobs) else 1
        self._enter(count)
        start = time.monotonic()
        try:
            return act(request)
        finally:
            with self.lock:
                self.waiting -= count
                self.seconds += time.monotonic() - start

    def _enter(self, count: int) -> None:
        with self.lock:
            if self.waiting + count > self.max_queue:
                self.rejected += 1
                raise Refused(
                    429, f"{count} more than the {self.waiting} programs that wait are above {self.max_queue}; send "
                    f"at most {self.max_queue} at a time, or come back later"
                )  # fmt: skip
            self.waiting += count

    def run_code(self, request: RunCode) -> dict[str, Any]:
        """Run one program and return its output, in SandboxFusion's form."""
        (result,) = self._run([request.trial(self.limits)])
        return http_format.fusion_run(result.tests[0])

    def submit(self, request: Submit) -> dict[str, Any]:
        """Run the code in a completion on the tests of the request, in SandboxFusion's form."""
        config = request.config or SubmitConfig()
        code = http_format.code_in(request.completion, config.language)
        tests = http_format.fusion_tests(config.provided_data)
        limits = fusion_limits(self.limits, config.run_timeout)
        trial = Trial(code, tests, "stdin", limits, False, config.language)
        check(trial)
        (result,) = self._run([trial])
        verdicts = [
            {"passed": t.passed, "exec_info": http_format.fusion_run(t), "test_info": test}
            for t, test in zip(result.tests, tests, strict=True)
        ]
        return {"id": request.id, "accepted": result.passed, "extracted_code": code, "full_code": code,
                "test_code": None, "tests": verdicts, "extracted_type": None, "extra": None}  # fmt: skip

    def run_one(self, request: Job) -> dict[str, Any]:
        """Run one trial, in our own form. Raises: ValueError if it cannot be run."""
        (result,) = self._run([request.trial(self.limits)])
        return http_format.result_to_json(result, request.values)

    def run_many(self, request: Jobs) -> dict[str, Any]:
        """Run several trials, in our own form, and return their results in order.

        A job that cannot be run has the status "sandbox_error" and the reason, and touches no other.
        """
        trials, refused = dict[int, Trial](), dict[int, RunResult]()
        for number, job in enumerate(request.jobs):
            try:
                trials[number] = job.trial(self.limits)
            except ValueError as exc:
                refused[number] = RunResult.failed(str(exc), max(1, len(job.tests or ())), 0)
        results = refused | dict(zip(trials, self._run(list(trials.values())), strict=True))
        jobs = enumerate(request.jobs)
        return {"results": [http_format.result_to_json(results[number], job.values) for number, job in jobs]}

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
        """Return the isolation level, the walls, the languages, packages, and the most that requests may ask for.

        Raises: IsolationError if no program can run.
        """
        isolation = self.pool.require_workers()
        if self._tools is not None:
            self._tools.require_workers()
        languages = sorted(name for name, is_available in available().items() if is_available)
        limits, quota = asdict(self.limits), asdict(self.sessions.quota)
        return {"status": "ok", "level": isolation.level, "walls": dict(isolation.stands), "languages": languages,
                "packages": list(self.pool.packages), "modules": sorted(self.pool.modules), "limits": limits,
                "quota": quota, "waiting": self.waiting}  # fmt: skip

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
