"""Several verifiers as one: weights, all of, first of, and gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationInfo, model_validator

from pipeline.types import Attempt, Verdict
from verifiers.base import BASE, BoundVerifier, VerifierParams, load, verifier


class Part(BaseModel):
    """One verifier in the combination."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str | None = None
    path: str | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    weight: float = Field(1.0, ge=0, allow_inf_nan=False, description="in the weighted mean")
    gate: bool = Field(False, description="a score below 1 makes the whole 0; counts for nothing else")
    reference: str | None = Field(None, description="key of the reference (an object) that this part is given")

    _base: Path | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _resolves(self, info: ValidationInfo) -> Self:
        self._base = (info.context or {}).get(BASE)
        _ = self.bound
        return self

    @cached_property
    def bound(self) -> BoundVerifier[Any]:
        """The verifier with its parameters; relative paths are taken from the recipe's folder, else the working one.

        Raises: ConfigError, UnknownName.
        """
        try:
            return load(self.name, self.path, self._base).bind(self.params, self._base)
        except Exception as exc:
            raise ValueError(str(exc)) from exc

    @property
    def label(self) -> str:
        """How reasons name it."""
        return self.name or str(self.path)


class CombineParams(VerifierParams):
    """The parts, and how their scores become one."""

    parts: tuple[Part, ...] = Field(min_length=1)
    mode: Literal["weighted", "all_of", "first_of"] = Field(
        "weighted", description="weighted mean; 1 only if all are 1; the first part that finds an answer decides"
    )

    def combined_verifiers(self) -> tuple[BoundVerifier[Any], ...]:
        """Return the parts' verifiers."""
        return tuple(part.bound for part in self.parts)

    @model_validator(mode="after")
    def _something_counts(self) -> Self:
        counted = [p for p in self.parts if not p.gate]
        if not counted:
            raise ValueError("every part is a gate; at least one must carry the score")
        if self.mode == "weighted" and sum(p.weight for p in counted) == 0:
            raise ValueError("all weights are 0")
        return self


@verifier(batch=True)
def combine(attempts: Sequence[Attempt], params: CombineParams) -> list[Verdict]:
    """One verdict per attempt from those of the parts.

    Gates are asked first; behind a closed one nothing else runs. Any part that fails as infrastructure makes the whole
    so, unless the whole is decided without it. In "weighted" one part without an answer leaves the whole without one:
    an empty response must not live on the parts that like it short. In "first_of" a part without passes on to the next.
    """
    verdicts: list[Verdict | None] = [None] * len(attempts)
    for part in [p for p in params.parts if p.gate]:
        for i, said in _ask(part, attempts, verdicts).items():
            if said.is_infrastructure:
                verdicts[i] = _named(said, part)
            elif not said.is_correct:
                verdicts[i] = Verdict(
                    said.status, 0.0, f"gate {part.label}: {said.reason}", said.extracted, said.seconds
                )
    counted = [p for p in params.parts if not p.gate]
    if params.mode == "weighted":
        _weighted(counted, attempts, verdicts)
    else:
        _in_turn(counted, attempts, verdicts, params.mode)
    return [v for v in verdicts if v is not None]


def _weighted(parts: Sequence[Part], attempts: Sequence[Attempt], verdicts: list[Verdict | None]) -> None:
    said = [_ask(part, attempts, verdicts) for part in parts]
    total = sum(p.weight for p in parts)
    for i in [i for i, v in enumerate(verdicts) if v is None]:
        each = [answers[i] for answers in said]
        failed = [(v, p) for v, p in zip(each, parts, strict=True) if v.is_infrastructure and p.weight]
        if failed:
            verdicts[i] = _named(*failed[0])
            continue
        without = next(((v, p) for v, p in zip(each, parts, strict=True) if v.status == "no_answer"), None)
        if without is not None:
            verdicts[i] = _named(*without)
            continue
        score = sum(p.weight * (v.score if v.status == "graded" else 0.0) for v, p in zip(each, parts, strict=True))
        reason = "; ".join(f"{p.label}={v.score:g} {v.reason}" for v, p in zip(each, parts, strict=True))[:300]
        extracted = next((v.extracted for v in each if v.extracted), None)
        seconds = sum(v.seconds for v in each)
        graded = any(v.status == "graded" for v in each)
        status = "graded" if graded else each[0].status
        verdicts[i] = Verdict(status, min(1.0, score / total) if graded else 0.0, reason, extracted, seconds)


def _in_turn(
    parts: Sequence[Part],
    attempts: Sequence[Attempt],
    verdicts: list[Verdict | None],
    mode: Literal["all_of", "first_of"],
) -> None:
    latest: dict[int, tuple[Verdict, Part]] = {}
    for part in parts:
        for i, said in _ask(part, attempts, verdicts).items():
            latest[i] = (said, part)
            passes_on = said.is_correct if mode == "all_of" else said.status == "no_answer"
            if not passes_on:
                score = 0.0 if mode == "all_of" else said.score
                named = _named(said, part)
                verdicts[i] = Verdict(named.status, score, named.reason, named.extracted, named.seconds)
    for i, (said, part) in latest.items():
        if verdicts[i] is None:
            verdicts[i] = said if mode == "all_of" else _named(said, part)


def _ask(part: Part, attempts: Sequence[Attempt], verdicts: Sequence[Verdict | None]) -> dict[int, Verdict]:
    """The part's verdicts for the attempts that have none yet, by place."""
    open_places = [i for i, v in enumerate(verdicts) if v is None]
    asked: list[Attempt] = []
    said: dict[int, Verdict] = {}
    for i in open_places:
        a = attempts[i]
        if part.reference is None:
            asked.append(a)
        elif isinstance(a.reference, Mapping) and part.reference in a.reference:
            asked.append(Attempt(a.response, a.reference[part.reference], a.prompt, a.truncated))
        else:
            said[i] = Verdict("verifier_error", reason=f"bad_reference: no key {part.reference!r} for {part.label}")
    places = [i for i in open_places if i not in said]
    if places:
        said.update(zip(places, part.bound.score(asked), strict=True))
    return said


def _named(verdict: Verdict, part: Part) -> Verdict:
    score = verdict.score if verdict.status == "graded" else 0.0
    return Verdict(verdict.status, score, f"{part.label}: {verdict.reason}"[:300], verdict.extracted, verdict.seconds)
