"""Requests to the sandbox's HTTP service, with the type and range of every field."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, RootModel

from verizero.sandbox.api import Trial, check
from verizero.sandbox.calls import Quota
from verizero.sandbox.http_format import language_of
from verizero.sandbox.results import Limits, Mode
from verizero.sandbox.worker import codec

MAX_SEED = (1 << 60) - 1


class _OwnForm(BaseModel):
    """A request in our own form: unknown fields are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class _FusionForm(BaseModel):
    """A request in SandboxFusion's form, which has fields that do not matter here."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


def _bytes(text: object) -> bytes:
    if not isinstance(text, str):
        raise ValueError("must be text in base64")
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as exc:
        raise ValueError(f"must be base64: {exc}") from exc


def _with_fields_of(kind: type[Limits] | type[Quota]) -> AfterValidator:
    known = kind.__dataclass_fields__

    def check(requested: dict[str, float | None]) -> dict[str, float | None]:
        if unknown := sorted(set(requested) - set(known)):
            raise ValueError(f"unknown {unknown[:3]}; known: {', '.join(known)}")
        return requested

    return AfterValidator(check)


Bounds = TypeVar("Bounds", Limits, Quota)


def granted(most: Bounds, asked: Mapping[str, float | None] | None, names: Mapping[str, str] | None = None) -> Bounds:
    """Return the limits of a request: what it asks for, and for the rest the defaults, if the service allows as much.

    `names` are the request's own names of limits. Raises: ValueError naming a limit above `most`: were it lowered, a
    program that needs it would fail, and nobody would see why.
    """
    numbers: dict[str, Any] = {}
    for name in (field.name for field in fields(most)):
        top, number = getattr(most, name), (asked or {}).get(name)
        if number is not None and number > top:
            shown = (names or {}).get(name, f"limits.{name}" if isinstance(most, Limits) else f"quota.{name}")
            raise ValueError(
                f"{shown}: {number:g} is above {top:g}, the most of this service for {name}; ask for at most that, or "
                "start the service with more"
            )
        numbers[name] = min(getattr(type(most)(), name), top) if number is None else number
    return type(most)(**numbers)


Positive = Annotated[float, Field(gt=0)]
Language = Annotated[str, BeforeValidator(language_of)]
AskedLimits = Annotated[dict[str, Positive | None], _with_fields_of(Limits)]
AskedQuota = Annotated[dict[str, Positive | None], _with_fields_of(Quota)]


class Job(_OwnForm):
    """A program with its tests."""

    program: str
    tests: list[dict[str, Any]] | None = None
    encoded_tests: str | None = None
    mode: Mode = "stdin"
    limits: AskedLimits | None = None
    stop_on_failure: bool = False
    language: Language = "python"
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


class Jobs(_OwnForm):
    """Several programs."""

    jobs: list[Job]


def fusion_limits(most: Limits, run_timeout: float | None, memory_mib: float | None = None) -> Limits:
    """Return the limits of a request in SandboxFusion's form. Raises: ValueError naming its field above `most`."""
    names = {"wall_s": "run_timeout", "cpu_s": "run_timeout", "memory_mib": "memory_limit_MB"}
    return granted(most, {"wall_s": run_timeout, "cpu_s": run_timeout, "memory_mib": memory_mib}, names)


class RunCode(_FusionForm):
    """SandboxFusion's `/run_code`: one program without tests."""

    code: str
    language: Language = "python"
    stdin: str | None = None
    run_timeout: Positive | None = None
    memory_limit_MB: float | None = None
    files: dict[str, Any] | None = None
    fetch_files: list[Any] | None = None

    def trial(self, most: Limits) -> Trial:
        """Return the trial. Raises: ValueError for files, which are not supported, and for limits above `most`."""
        if self.files or self.fetch_files:
            raise ValueError("files and fetch_files are not supported; send the program's input as stdin")
        memory = self.memory_limit_MB if (self.memory_limit_MB or 0) > 0 else None  # -1 is none in SandboxFusion
        limits = fusion_limits(most, self.run_timeout, memory)
        test = {"input": self.stdin or "", "output": None}
        return Trial(self.code, [test], "stdin", limits, False, self.language)


class SubmitConfig(_FusionForm):
    """The options of a `/submit`."""

    language: Language = "python"
    run_timeout: Positive | None = None
    provided_data: dict[str, Any] | list[Any] | None = None


class Submit(_FusionForm):
    """SandboxFusion's `/submit`: a completion that holds a program, and its tests."""

    completion: str
    id: str | int | None = None
    config: SubmitConfig | None = None


class OpenRequest(_OwnForm):
    """A new session."""

    limits: AskedLimits | None = None
    quota: AskedQuota | None = None
    seed: int = Field(0, ge=0, le=MAX_SEED)


class SessionRequest(_OwnForm):
    """A request about a session."""

    session: str


class _Timed(SessionRequest):
    wall_s: Positive | None = None
    cpu_s: Positive | None = None


class Python(_Timed):
    """A cell."""

    kind: Literal["python"]
    code: str


class Shell(_Timed):
    """A line of Bash."""

    kind: Literal["shell"]
    line: str


class Write(SessionRequest):
    """A file to write, in base64."""

    kind: Literal["write"]
    path: str
    data: Annotated[bytes, BeforeValidator(_bytes)]


class Read(SessionRequest):
    """A file to read."""

    kind: Literal["read"]
    path: str


class CallRequest(RootModel[Annotated[Python | Shell | Write | Read, Discriminator("kind")]]):
    """One call of a session."""
