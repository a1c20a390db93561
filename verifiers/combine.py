"""Combine verifiers: by weights, and by gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationInfo, model_validator

from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers._steps import steps_of_one
from verizero.verifiers.base import BASE, BoundVerifier, VerifierParams, load, verifier


class Part(BaseModel):
    """One verifier in the combination."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str | None = None
    path: str | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    weight: float = Field(1.0, ge=0, allow_inf_nan=False, description="in the weighted mean")
    gate: bool = Field(False, description="a score below 1 makes the whole 0; the score counts for nothing else")
    reference: str | None = Field(None, description="key of the reference (an object) that this part is given")

    _base: Path | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _resolves(self, info: ValidationInfo) -> Self:
        self._base = (info.context or {}).get(BASE)
        _ = self.bound
        return self

    @cached_property
    def bound(self) -> BoundVerifier[Any]:
        """The verifier with its parameters; relative paths start from the recipe's folder, else the working folder.

        Raises: ConfigError, UnknownName.
        """
        try:
            return load(self.name, self.path, self._base).bind(self.params, self._base)
        except Exception as exc:
            raise ValueError(str(exc)) from exc

    @property
    def label(self) -> str:
        """The name of the part in reasons."""
        return self.name or str(self.path)


class CombineParams(VerifierParams):
    """The parts."""

    parts: tuple[Part, ...] = Field(min_length=1)

    def combined_verifiers(self) -> tuple[BoundVerifier[Any], ...]:
        """Return the parts' verifiers."""
        return tuple(part.bound for part in self.parts)

    @model_validator(mode="after")
    def _something_counts(self) -> Self:
        counted = [p for p in self.parts if not p.gate]
        if not counted:
            raise ValueError("every part is a gate; at least one must carry the score")
        if sum(p.weight for p in counted) == 0:
            raise ValueError("all weights are 0")
        return self


@verifier(batch=True)
def combine(attempts: Sequence[Attempt], params: CombineParams) -> list[Verdict]:
    """Return one verdict per attempt: the mean of the parts' scores, by their weights.

    Gates are asked first; after a closed gate nothing else runs. A part that fails as infrastructure makes the whole
    fail, unless the whole is decided without it. One part without an answer leaves the whole without an answer: an
    empty response must not earn from the parts that reward brevity. Steps are those of the one part that gives them.
    """
    verdicts: list[Verdict | None] = [None] * len(attempts)
    for part in [p for p in params.parts if p.gate]:
        for i, verdict in _ask(part, attempts, verdicts).items():
            if verdict.is_infrastructure:
                verdicts[i] = _named(verdict, part)
            elif not verdict.is_correct:
                verdicts[i] = replace(verdict, score=0.0, reason=f"gate {part.label}: {verdict.reason}", steps=())
    _weigh([p for p in params.parts if not p.gate], attempts, verdicts)
    return [v for v in verdicts if v is not None]


def _weigh(parts: Sequence[Part], attempts: Sequence[Attempt], verdicts: list[Verdict | None]) -> None:
    by_part = [_ask(part, attempts, verdicts) for part in parts]
    total = sum(p.weight for p in parts)
    for i in [i for i, v in enumerate(verdicts) if v is None]:
        each = [of_part[i] for of_part in by_part]
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
        try:
            steps = steps_of_one(zip((p.label for p in parts), each, strict=True))
        except ValueError as exc:
            verdicts[i] = Verdict("verifier_error", reason=str(exc))
            continue
        score = min(1.0, score / total) if graded else 0.0
        verdicts[i] = Verdict(status, score, reason, extracted, seconds, steps=steps)


def _ask(part: Part, attempts: Sequence[Attempt], verdicts: Sequence[Verdict | None]) -> dict[int, Verdict]:
    """Return the part's verdicts on the attempts that have none yet, by index."""
    asked: dict[int, Attempt] = {}
    made: dict[int, Verdict] = {}
    for i in [i for i, verdict in enumerate(verdicts) if verdict is None]:
        reference = attempts[i].reference
        if part.reference is None:
            asked[i] = attempts[i]
        elif isinstance(reference, Mapping) and part.reference in reference:
            asked[i] = replace(attempts[i], reference=reference[part.reference])
        else:
            made[i] = Verdict("verifier_error", reason=f"bad_reference: no key {part.reference!r} for {part.label}")
    if asked:
        made.update(zip(asked, part.bound.score(list(asked.values())), strict=True))
    return made


def _named(verdict: Verdict, part: Part) -> Verdict:
    score = verdict.score if verdict.status == "graded" else 0.0
    return replace(verdict, score=score, reason=f"{part.label}: {verdict.reason}"[:300])
