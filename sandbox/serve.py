"""The sandbox over HTTP: programs with their tests, and health."""

from __future__ import annotations

import json
import threading
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from verizero.pipeline.errors import IsolationError
from verizero.pipeline.host.service import Refused, Service, checked, parsed
from verizero.sandbox.api import check, run_many
from verizero.sandbox.client import result_to_json
from verizero.sandbox.languages import available
from verizero.sandbox.pool import Pool
from verizero.sandbox.results import Limits, Mode, Trial
from verizero.sandbox.worker import codec

MAX_WAITING = 1024
"""Programs that wait at one time; another is turned away."""


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


class Job(_Form):
    """A program with its tests."""

    program: str
    tests: list[dict[str, Any]] | None = None
    encoded_tests: str | None = None
    mode: Mode = "stdin"
    limits: Annotated[dict[str, Annotated[float, Field(gt=0)] | None], AfterValidator(_known_limits)] | None = None
    stop_on_failure: bool = False
    language: Annotated[str, BeforeValidator(_language_of)] = "python"

    def trial(self) -> Trial:
        """Return the trial. Raises: ValueError naming the field, or a malformed test."""
        limits = Limits(**{name: value for name, value in (self.limits or {}).items() if value is not None})  # type: ignore[arg-type]
        trial = Trial(self.program, self._tests(), self.mode, limits, self.stop_on_failure, self.language)
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
    """Serves the sandbox at an address: a pool runs the clients' programs, of which only so many wait."""

    def __init__(self, pool: Pool, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> None:
        """Bind the address. Raises: IsolationError when the walls are too low; OSError."""
        self.pool, self.lock = pool, threading.Lock()
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
        with self.lock:
            if self.waiting >= MAX_WAITING:
                raise Refused(429, f"{self.waiting} programs wait, as many as may; come back later")
            self.waiting += 1
        try:
            trial = job.trial()
            (result,) = run_many([trial], pool=self.pool)
            return result_to_json(result, trial.tests)
        finally:
            with self.lock:
                self.waiting -= 1
                self.num_programs += 1

    def health(self) -> dict[str, Any]:
        """Return level, walls, languages, packages, and counts of programs. Raises: IsolationError if none can run."""
        isolation = self.pool.require_workers()
        languages = sorted(name for name, is_available in available().items() if is_available)
        return {"status": "ok", "level": isolation.level, "walls": dict(isolation.stands), "languages": languages,
                "packages": list(self.pool.packages), "modules": sorted(self.pool.modules),
                "waiting": self.waiting, "programs": self.num_programs}  # fmt: skip
