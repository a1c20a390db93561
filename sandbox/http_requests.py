"""Requests to the sandbox's HTTP service, with the type and range of every field."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, RootModel

from verizero.sandbox.api import Trial
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

    def trial(self, max_limits: Limits) -> Trial:
        """Return the trial, whose limits can only lower `max_limits`. Raises: ValueError naming the field."""
        limits, stop_on_failure = max_limits.lowered(**self.limits or {}), self.stop_on_failure
        return Trial(self.program, self._tests(), self.mode, limits, stop_on_failure, self.language, self.values)

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


class RunCode(_FusionForm):
    """SandboxFusion's `/run_code`: one program without tests."""

    code: str
    language: Language = "python"
    stdin: str | None = None
    run_timeout: Positive | None = None
    memory_limit_MB: float | None = None
    files: dict[str, Any] | None = None
    fetch_files: list[Any] | None = None

    def trial(self, max_limits: Limits) -> Trial:
        """Return the trial. Raises: ValueError for files, which are not supported."""
        if self.files or self.fetch_files:
            raise ValueError("files and fetch_files are not supported; send the program's input as stdin")
        memory = self.memory_limit_MB if (self.memory_limit_MB or 0) > 0 else None  # -1 is none in SandboxFusion
        limits = max_limits.lowered(wall_s=self.run_timeout, cpu_s=self.run_timeout, memory_mib=memory)
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
