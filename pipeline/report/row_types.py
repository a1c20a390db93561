"""The types of rows of metrics.jsonl and rollouts.jsonl, and their JSON.

A row's keys are the names of its fields, in the order of the class, after the keys that name its kind. A field whose
default is None is left out while it is None. Fields with a default may be missing: files of older runs lack them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

from verizero.pipeline.config.run import section_class_of
from verizero.pipeline.config.stages import StageSection
from verizero.pipeline.errors import DataError
from verizero.pipeline.types import FinishReason, Status

Numbers = Mapping[str, float]
VARYING = ("time", "speed", "memory")
"""Keys of a row whose values may differ between two equal runs."""
Tag = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """The first fields of all rows of a stage."""

    stage: str
    stage_kind: str | None = None
    """Older runs have no such key: their stages are named as their kind. None also before the first stage."""
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow(StageRow):
    """One step of a stage. A step of RL samples, grades and updates with one or several optimiser steps.

    Example: StepRow(stage="rl", stage_kind="rl", round=1, step=3, metrics={"loss": 0.1}, time={"update": 1.5})
    """

    TAG: ClassVar[Tag] = {"kind": "step"}
    step: int
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
    step: int
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
    step: int
    """RL steps before the evaluation."""
    label: str
    k: int
    """Samples a prompt."""
    domains: Mapping[str, Mapping[str, Any]]
    """Domain -> its measures and counts, see `summarize_domain`."""
    verdicts: Mapping[str, int] = field(default_factory=dict)
    """Responses by the status of their verdict."""
    retried: int = 0
    """Verdicts that were asked for again because the grader failed."""
    time: Numbers


@dataclass(frozen=True, slots=True)
class SignRow:
    """A measure that is past its limit."""

    measure: str
    value: float
    limit: float
    text: str = field(metadata={"key": "said"})
    """The sign in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollapseAlarm(StageRow):
    """A suspected collapse of RL, and the action taken. Three of the fields are set after a roll-back only."""

    TAG: ClassVar[Tag] = {"kind": "alarm", "alarm": "collapse"}
    step: int
    """RL step at which the collapse was seen."""
    action: str
    """The recipe's `guard.action`."""
    signs: tuple[SignRow, ...] = field(metadata={"row": SignRow})
    to_step: int | None = None
    """RL step that the run went back to: later rows of this stage that precede the alarm no longer count."""
    roll_backs: int | None = None
    """Roll-backs of this stage so far."""
    knob: Numbers | None = None
    """Values of `guard.knob` from here on."""
    time: Numbers = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierAlarm:
    """Graders failed on a larger share of responses than `scoring.alarm_rate`."""

    TAG: ClassVar[Tag] = {"kind": "alarm", "alarm": "verifier"}
    stage: str
    step: int
    failure_rate: float
    responses: int
    where: str
    first: str
    """Status and reason of the first failure."""
    time: Numbers = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpinionRow:
    """A second verifier's verdict."""

    status: Status
    score: float
    reason: str
    disagrees: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRow:
    """A response to a prompt, and its place in the run."""

    stage: str
    """The stage's name, or "evaluation/" and the label of an evaluation."""
    round: int
    step: int
    prompt_id: str
    domain: str
    prompt: str
    response: str
    sample: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow:
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
    tokens: int | None = None
    """Sampled tokens."""
    observed: int | None = None
    """Tokens that the policy was shown before, since its last turn."""
    reward: float | None = None
    finish_reason: FinishReason | None = None
    version: int | None = None
    """Version of the weights that sampled the turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRow(ResponseRow):
    """One graded response, or the last message of an episode; a line of rollouts.jsonl."""

    reward: float | None
    status: Status
    score: float
    reason: str
    extracted: str | None
    finish_reason: FinishReason
    length: int
    """Sampled tokens."""
    kept_sizes: tuple[int, ...] | None = None
    """Tokens that could be drawn at each place, 0 for all; None unless sampled with top-p or top-k."""
    kept: bool
    """True if the rewards of the response's group differ, so that the group can teach something."""
    steps: tuple[Sequence[Any], ...] | None = None
    """(text, reward) of each step that the verdict has; None if it has none."""
    second: OpinionRow | None = field(default=None, metadata={"row": OpinionRow})
    roll_backs: int | None = None
    """Roll-backs before this step, which was done before; None before the first."""
    ending: str | None = None
    """Why an episode ended; None for a single response, as in the two fields below."""
    rows: int | None = None
    """Sequences that the episode trains as: more than one where its history was rewritten."""
    messages: tuple[MessageRow, ...] | None = field(default=None, metadata={"row": MessageRow})
    seed: int | None = None
    """The seed of the episode's environment, with which `verizero replay` plays it again."""


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


def to_json(row: Any) -> dict[str, Any]:
    """Return `row` as the JSON object that is written, keys in order."""
    values = ((f, getattr(row, f.name)) for f in fields(row))
    # A field without a default is written even if None, so that every row of a kind has it.
    own = {_key_of(f): _plain(value) for f, value in values if value is not None or f.default is not None}
    return {**getattr(row, "TAG", {}), **own}


def metrics_row(line: Mapping[str, Any], place: str) -> MetricsRow:
    """Return the row of a line of metrics.jsonl. Raises: DataError naming `place` and the kind or key that is wrong."""
    kind = tuple(str(line[key]) for key in ("kind", "alarm") if key in line)
    if kind not in KINDS:
        known = ", ".join(" ".join(names) for names in KINDS)
        raise DataError(f"{place} is of no known kind: {' '.join(kind) or 'it has no key kind'}; known: {known}")
    row: MetricsRow = _row(KINDS[kind], line, place)
    return row


def rollout_row(line: Mapping[str, Any], place: str) -> RolloutRow:
    """Return the row of a line of rollouts.jsonl. Raises: DataError naming `place` and the key that is wrong."""
    row: RolloutRow = _row(RolloutRow, line, place)
    return row


def _key_of(of: Field[Any]) -> str:
    """Return the field's key in JSON."""
    key: str = of.metadata.get("key", of.name)
    return key


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return to_json(value)
    return [_plain(part) for part in value] if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True)
class _Key:
    name: str
    """Name of the field."""
    types: tuple[type, ...]
    """Python types that its value may have in parsed JSON."""
    required: bool
    row: type[Any] | None
    """The class of the rows inside the value."""


@cache
def _keys(row: Any) -> dict[str, _Key]:
    hints = get_type_hints(row)
    return {
        _key_of(f): _Key(
            f.name,
            _json_types(hints[f.name]),
            f.default is MISSING and f.default_factory is MISSING,
            f.metadata.get("row"),
        )
        for f in fields(row)
    }


def _json_types(hint: Any) -> tuple[type, ...]:
    if isinstance(hint, UnionType):
        return tuple(t for part in get_args(hint) for t in _json_types(part))
    plain = get_origin(hint) or hint
    if plain in (str, int, bool, NoneType):
        return (plain,)
    if plain is float:
        # A whole number may be written without a point.
        return (float, int)
    if plain is tuple:
        return (list,)
    return (dict,) if plain is Mapping or is_dataclass(plain) else (str,)  # what is left are literals


def _row(kind: Any, line: object, place: str) -> Any:
    """Return the row of class `kind`. Raises: DataError for an unknown or missing key, or a value of another type."""
    keys = _keys(kind)
    tag: Tag = getattr(kind, "TAG", {})
    if not isinstance(line, Mapping):
        raise DataError(f"{place} is {type(line).__name__}, expected an object")
    values: dict[str, Any] = {}
    for name, value in line.items():
        if name in tag:
            continue
        key = keys.get(name)
        if key is None:
            raise DataError(f"{place} has the unknown key {name!r}; known: {', '.join([*tag, *keys])}")
        if not isinstance(value, key.types):
            wanted = " or ".join(t.__name__ for t in key.types)
            raise DataError(f"{place}: {name} is {type(value).__name__}, expected {wanted}")
        plain = key.row is None and not isinstance(value, list)
        values[key.name] = value if plain else _value(key, value, f"{place}, {name}")
    missing = [name for name, key in keys.items() if key.required and key.name not in values]
    if missing:
        raise DataError(f"{place} has no key {missing[0]!r}; restore the line, or remove it")
    return kind(**values)


def _value(key: _Key, value: Any, place: str) -> Any:
    if isinstance(value, list):
        # Rows are frozen, so lists become tuples.
        return tuple(value if key.row is None else (_row(key.row, part, place) for part in value))
    return value if key.row is None or value is None else _row(key.row, value, place)
