"""The sandbox over HTTP: programs with their tests, and health."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from verizero.pipeline.errors import IsolationError
from verizero.pipeline.host.service import Refused, Service, checked, parsed
from verizero.sandbox.api import Trial, check, run_many
from verizero.sandbox.client import result_to_json
from verizero.sandbox.languages import available
from verizero.sandbox.pool import Pool
from verizero.sandbox.results import Limits, Mode
from verizero.sandbox.worker import codec

MOST = Limits(wall_s=60, cpu_s=30, memory_mib=1024, output_kib=16384, disk_mib=64, processes=64, max_tests=10_000)
"""The most that a request may ask for, where the service is not told."""
_DEFAULTS = Limits()


class _Form(BaseModel):
    """A request; unknown fields are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


def _known_limits(requested: dict[str, float | None]) -> dict[str, float | None]:
    known = Limits.__dataclass_fields__
    if unknown := sorted(set(requested) - set(known)):
        raise ValueError(f"unknown {unknown[:3]}; known: {', '.join(known)}")
    return requested


def _language_of(named: object) -> str:
    """Return the language of a request, Python where it names none. Raises: ValueError if unknown."""
    language = "python" if named is None else named
    if not isinstance(language, str) or language not in available():
        raise ValueError(f"unknown language, known: {', '.join(available())}")
    return language


def granted(most: Limits, asked: Mapping[str, float | None] | None) -> Limits:
    """Return the limits of a request: what it asks for, and for the rest the defaults, if the service allows as much.

    Raises: ValueError naming a limit above `most`: were it lowered, a program that needs it would fail, and nobody
    would see why.
    """
    numbers: dict[str, Any] = {}
    for name in (field.name for field in fields(most)):
        top, number = getattr(most, name), (asked or {}).get(name)
        if number is not None and number > top:
            raise ValueError(
                f"limits.{name}: {number:g} is above {top:g}, the most of this service for {name}; ask for at most "
                "that, or start the service with more"
            )
        numbers[name] = min(getattr(_DEFAULTS, name), top) if number is None else number
    return Limits(**numbers)


class Job(_Form):
    """A program with its tests."""

    program: str
    tests: list[dict[str, Any]] | None = None
    encoded_tests: str | None = None
    mode: Mode = "stdin"
    limits: Annotated[dict[str, Annotated[float, Field(gt=0)] | None], AfterValidator(_known_limits)] | None = None
    stop_on_failure: bool = False
    language: Annotated[str, BeforeValidator(_language_of)] = "python"
    values: bool = False

    def trial(self, most: Limits) -> Trial:
        """Return the trial, with limits of at most `most`. Raises: ValueError naming the field, or a malformed test."""
        limits, stop_on_failure = granted(most, self.limits), self.stop_on_failure
        trial = Trial(self.program, self._tests(), self.mode, limits, stop_on_failure, self.language, self.values)
        check(trial)
        return trial

    def _tests(self) -> list[dict[str, Any]]:
        if (self.tests is None) == (self.encoded_tests is None):
            raise ValueError("a job has tests or encoded_tests, and not both")
        if self.encoded_tests is None:
            return self.tests or []
        try:
            tests = codec.read(self.encoded_tests.encode(), of_program=False)
        except ValueError as exc:
            raise ValueError(f"encoded_tests: {exc}") from exc
        if not isinstance(tests, list) or not all(isinstance(test, dict) for test in tests):
            raise ValueError("encoded_tests must be a list of objects")
        return tests


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
    ) -> None:
        """Bind the address. No request may ask for more than `limits`, by default `MOST`.

        Raises: ValueError for a queue without room; IsolationError when the walls are too low; OSError.
        """
        if max_queue < 1:
            raise ValueError(f"max_queue must be at least 1, got {max_queue}")
        self.limits = limits or MOST
        self.pool, self.max_queue, self.lock = pool, max_queue, threading.Lock()
        self.waiting = self.num_programs = 0
        self.health()
        super().__init__(self.respond, host, port, token)

    def respond(self, request: Request, body: bytes) -> Response:
        """Return the reply to a request. Raises: Refused."""
        place = (request.method, request.url.path)
        try:
            answer = self.health() if place == ("GET", "/health") else self._act(*place, body)
        except IsolationError as exc:
            raise Refused(503, str(exc)) from exc
        except ValueError as exc:
            raise Refused(422, str(exc)) from exc
        return Response(json.dumps(answer), media_type="application/json")

    def _act(self, method: str, path: str, body: bytes) -> dict[str, Any]:
        """Answer a POST request, if the queue has room. Raises: Refused; ValueError."""
        if (method, path) != ("POST", "/run"):
            raise Refused(404, f"no {method} {path}; POST /run, or GET /health")
        job = checked(Job, parsed(body), 422)
        self._enter()
        try:
            return self._run(job)
        finally:
            with self.lock:
                self.waiting -= 1
                self.num_programs += 1

    def _enter(self) -> None:
        with self.lock:
            if self.waiting >= self.max_queue:
                raise Refused(429, f"{self.waiting} programs wait, as many as may; come back later")
            self.waiting += 1

    def _run(self, job: Job) -> dict[str, Any]:
        """Run a job. Raises: ValueError if it cannot be run; IsolationError where its language is not installed."""
        (result,) = run_many([job.trial(self.limits)], pool=self.pool)
        return result_to_json(result, job.values)

    def health(self) -> dict[str, Any]:
        """Return the isolation level, the walls, the languages, packages, and the most that requests may ask for.

        Raises: IsolationError if no program can run.
        """
        isolation = self.pool.require_workers()
        languages = sorted(name for name, is_available in available().items() if is_available)
        return {"status": "ok", "level": isolation.level, "walls": dict(isolation.stands), "languages": languages,
                "packages": list(self.pool.packages), "modules": sorted(self.pool.modules),
                "limits": asdict(self.limits), "waiting": self.waiting, "programs": self.num_programs}  # fmt: skip
