"""The types of rows of metrics.jsonl and rollouts.jsonl, and their JSON.

A row's keys are the names of its fields, in the order of the class, after the keys that name its kind. A field whose
default is None is left out while it is None. Fields with a default may be missing: files of older runs lack them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, ClassVar

from pydantic import (
    AliasChoices,
    ConfigDict,
    Field,
    PlainValidator,
    StrictBool,
    StrictFloat,
    StrictInt,
    TypeAdapter,
    ValidationError,
)

from verizero.pipeline.config.run import section_class_of
from verizero.pipeline.config.stages import StageSection
from verizero.pipeline.errors import DataError
from verizero.pipeline.types import FinishReason, Status


def _numbers(value: Any) -> Mapping[str, float]:
    """Return numbers by name as they are written; null is one that was not finite."""
    if not isinstance(value, Mapping):
        raise ValueError("expected an object")
    return {name: math.nan if number is None else number for name, number in value.items()}


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("expected a text")
    return value


Word = PlainValidator(_text)
"""Any text: files of older runs may have words that are not written any more."""
Numbers = Annotated[Mapping[str, float], PlainValidator(_numbers)]
VARYING = ("time", "speed", "memory")
"""Keys of a row whose values may differ between two equal runs."""
Tag = Mapping[str, str]


class Row:
    """Base of rows, and of rows in rows: unknown keys are refused."""

    __slots__ = ()
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow(Row):
    """The first fields of all rows of a stage."""

    stage: str
    stage_kind: str | None = None
    """Older runs have no such key: their stages are named as their kind. None also before the first stage."""
    round: StrictInt


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow(StageRow):
    """One step of a stage. A step of RL samples, grades and updates with one or several optimiser steps."""

    TAG: ClassVar[Tag] = {"kind": "step"}
    step: StrictInt
    metrics: Numbers
    time: Numbers
    """Seconds by phase. Everything that may differ between two equal runs is in here, and in the two below."""
    speed: Numbers | None = None
    """Tokens a second of the phases generate and update, over all ranks, and the update's MFU where it is known."""
    memory: Numbers | None = None
    """GiB that torch held on this rank's GPU at the peak of each phase; None on the CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow(StageRow):
    """One piece of a stage that samples demonstrations."""

    TAG: ClassVar[Tag] = {"kind": "sample"}
    step: StrictInt
    metrics: Numbers
    time: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsRow(StageRow):
    """The pairs that were sampled for one part of a preference stage."""

    TAG: ClassVar[Tag] = {"kind": "pairs"}
    metrics: Numbers
    time: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRow(StageRow):
    """One held-out evaluation."""

    TAG: ClassVar[Tag] = {"kind": "evaluation"}
    step: StrictInt
    """RL steps before the evaluation."""
    label: str
    k: StrictInt
    """Samples a prompt."""
    domains: Mapping[str, Mapping[str, Any]]
    """Domain -> its measures and counts, see `summarize_domain`."""
    verdicts: Mapping[str, int] = field(default_factory=dict)
    """Responses by the status of their verdict."""
    retried: StrictInt = 0
    """Verdicts that were asked for again because the grader failed."""
    time: Numbers


@dataclass(frozen=True, slots=True)
class SignRow(Row):
    """A measure that is past its limit."""

    measure: str
    value: StrictFloat
    limit: StrictFloat
    text: Annotated[str, Field(validation_alias=AliasChoices("text", "said"))]
    """The sign in words; older runs name it `said`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollapseAlarm(StageRow):
    """A suspected collapse of RL, and the action taken. Three of the fields are set after a roll-back only."""

    TAG: ClassVar[Tag] = {"kind": "alarm", "alarm": "collapse"}
    step: StrictInt
    """RL step at which the collapse was seen."""
    action: str
    """The recipe's `guard.action`."""
    signs: tuple[SignRow, ...]
    to_step: StrictInt | None = None
    """RL step that the run went back to: later rows of this stage that precede the alarm no longer count."""
    roll_backs: StrictInt | None = None
    """Roll-backs of this stage so far."""
    knob: Numbers | None = None
    """The learning rate from here on, by its name in the recipe."""
    time: Numbers = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierAlarm(Row):
    """Graders failed on a larger share of responses than `scoring.alarm_rate`."""

    TAG: ClassVar[Tag] = {"kind": "alarm", "alarm": "verifier"}
    stage: str
    step: StrictInt
    failure_rate: StrictFloat
    responses: StrictInt
    where: str
    first: str
    """Status and reason of the first failure."""
    time: Numbers = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRow(Row):
    """A response to a prompt, and its place in the run."""

    stage: str
    """The stage's name, or "evaluation/" and the label of an evaluation."""
    round: StrictInt
    step: StrictInt
    prompt_id: str
    domain: str
    prompt: str
    response: str
    sample: StrictInt


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow(Row):
    """One message of an episode. A message of the policy has the numbers of its turn."""

    role: str
    text: str
    calls: tuple[Mapping[str, Any], ...] | None = None
    """{id, name, arguments} of the tools that the message calls."""
    name: str | None = None
    """The tool whose result this is."""
    answers: str | None = None
    """The id of the call whose result this is."""
    unread: str | None = None
    """The reason for which a call in the message could not be read."""
    tokens: StrictInt | None = None
    """Sampled tokens."""
    observed: StrictInt | None = None
    """Tokens that the policy was shown before, since its last turn."""
    reward: StrictFloat | None = None
    finish_reason: Annotated[FinishReason, Word] | None = None
    version: StrictInt | None = None
    """Version of the weights that sampled the turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRow(ResponseRow):
    """One graded response, or the last message of an episode; a line of rollouts.jsonl."""

    reward: StrictFloat | None
    status: Annotated[Status, Word]
    score: StrictFloat
    reason: str
    extracted: str | None
    finish_reason: Annotated[FinishReason, Word]
    length: StrictInt
    """Sampled tokens."""
    kept_sizes: tuple[int, ...] | None = None
    """Tokens that could be drawn at each place, 0 for all; None unless sampled with top-p or top-k."""
    kept: StrictBool
    """True if the rewards of the response's group differ, so that the group can teach something."""
    steps: tuple[Sequence[Any], ...] | None = None
    """(text, reward) of each step that the verdict has; None if it has none."""
    roll_backs: StrictInt | None = None
    """Roll-backs before this step, which was done before; None before the first."""
    ending: str | None = None
    """Why an episode ended; None for a single response, as in the two fields below."""
    rows: StrictInt | None = None
    """Sequences that the episode trains as: more than one where its history was rewritten."""
    messages: tuple[MessageRow, ...] | None = None
    seed: StrictInt | None = None
    """The seed of the episode's environment."""


Alarm = CollapseAlarm | VerifierAlarm
MetricsRow = StepRow | SampleRow | PairsRow | EvaluationRow | Alarm
KINDS: dict[tuple[str, ...], type[MetricsRow]] = {
    tuple(row.TAG.values()): row for row in (StepRow, SampleRow, PairsRow, EvaluationRow, CollapseAlarm, VerifierAlarm)
}


def kind_of(row: StepRow) -> str:
    """Return the kind of the step's stage."""
    return row.stage_kind or row.stage


def section_of(row: StepRow) -> type[StageSection]:
    """Return the class of the sections that define that kind, with its facts."""
    return section_class_of(kind_of(row))


def alarm_line(row: Alarm) -> str:
    """Return the alarm in one sentence."""
    if isinstance(row, VerifierAlarm):
        share = f"{row.failure_rate:.0%} of {row.responses:,} responses"
        return f"{row.where or row.stage}: graders failed on {share}. {row.first}".strip()
    signs = ", ".join(sign.text for sign in row.signs)
    suspicion = f"{row.stage} step {row.step}: RL may be collapsing: {signs}"
    if row.to_step is None:
        return suspicion + (". The run went on" if row.action == "warn" else ". The run was stopped")
    knob = ", ".join(f"{name} = {value:g}" for name, value in (row.knob or {}).items())
    return f"{suspicion}. Rolled back to step {row.to_step}, with {knob} from there on"


def to_json(row: Any) -> dict[str, Any]:
    """Return `row` as the JSON object that is written, keys in order."""
    values = ((f, getattr(row, f.name)) for f in fields(row))
    # A field without a default is written even if None, so that every row of a kind has it.
    own = {f.name: _plain(v) for f, v in values if v is not None or f.default is not None}
    return {**getattr(row, "TAG", {}), **own}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return to_json(value)
    if isinstance(value, Mapping):
        # JSON has no NaN and no infinity, and what a reward function only shows may be one.
        return {n: None if isinstance(v, float) and not math.isfinite(v) else _plain(v) for n, v in value.items()}
    return [_plain(part) for part in value] if isinstance(value, tuple) else value


def metrics_row(line: Mapping[str, Any], place: str) -> MetricsRow:
    """Return the row of a line of metrics.jsonl. Raises: DataError naming `place` and the kind or key that is wrong."""
    kind = tuple(str(line[key]) for key in ("kind", "alarm") if key in line)
    if kind not in KINDS:
        known = ", ".join(" ".join(names) for names in KINDS)
        raise DataError(f"{place} is of no known kind: {' '.join(kind) or 'it has no key kind'}; known: {known}")
    row: MetricsRow = _row(KINDS[kind], {key: v for key, v in line.items() if key not in KINDS[kind].TAG}, place)
    return row


def rollout_row(line: Mapping[str, Any], place: str) -> RolloutRow:
    """Return the row of a line of rollouts.jsonl. Raises: DataError naming `place` and the key that is wrong."""
    row: RolloutRow = _row(RolloutRow, line, place)
    return row


@cache
def _reader(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _row(kind: Any, line: Mapping[str, Any], place: str) -> Any:
    try:
        return _reader(kind).validate_python(line)
    except ValidationError as exc:
        error = exc.errors(include_url=False)[0]
        key = ".".join(map(str, error["loc"]))
        if error["type"] == "missing":
            raise DataError(f"{place} has no key {key!r}; restore the line, or remove it") from exc
        if error["type"] == "unexpected_keyword_argument":
            is_of_row = len(error["loc"]) == 1  # else of a row in it
            known = ", ".join([*getattr(kind, "TAG", {}), *(f.name for f in fields(kind))]) if is_of_row else ""
            raise DataError(f"{place} has the unknown key {key!r}" + (f"; known: {known}" if known else "")) from exc
        raise DataError(
            f"{place}: {key}: {error['msg'].removeprefix('Value error, ')}, got {error['input']!r:.80}"
        ) from exc
