"""Several reward functions as one reward: the sum of each times its weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers._reward_functions import verdict_of
from verizero.verifiers._steps import steps_of_one
from verizero.verifiers.base import BASE, BoundVerifier, VerifierParams, load, verifier


class RewardsParams(VerifierParams):
    """The functions, and what each counts."""

    functions: dict[str, str] = Field(
        min_length=1,
        description='name -> "file.py:function", or the name of a verifier; its reward is shown by the name',
    )
    weights: dict[str, float] = Field({}, description="name -> weight in the sum; 1 where none is given")
    success: float | None = Field(
        None, allow_inf_nan=False, description="a response with at least this sum counts as right; null: a sum of 1"
    )

    _base: Path | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _resolves(self, info: ValidationInfo) -> Self:
        self._base = (info.context or {}).get(BASE)
        if unknown := sorted(self.weights.keys() - self.functions.keys()):
            raise ValueError(f"weights: {unknown[0]!r} is none of the functions {', '.join(self.functions)}")
        try:
            _ = self.bound
        except Exception as exc:
            raise ValueError(str(exc)) from exc
        return self

    @cached_property
    def bound(self) -> Mapping[str, BoundVerifier[Any]]:
        """The functions as verifiers, by name. Raises: ConfigError, UnknownName."""
        loaded = {
            name: load(path=where, base=self._base) if ":" in where else load(where)
            for name, where in self.functions.items()
        }
        return {name: v.bind({}, self._base) for name, v in loaded.items()}

    def combined_verifiers(self) -> tuple[BoundVerifier[Any], ...]:
        """Return the functions as verifiers."""
        return tuple(self.bound.values())


@verifier(batch=True)
def rewards(attempts: Sequence[Attempt], params: RewardsParams) -> list[Verdict]:
    """Return one verdict per attempt: the weighted sum of what each function gives.

    A function that abstains adds nothing; where all abstain there is no reward. A function that fails makes the whole
    fail, since a sum without it is on another scale than those of its group.
    """
    columns = {name: bound.score(attempts) for name, bound in params.bound.items()}
    return [_summed({name: column[i] for name, column in columns.items()}, params) for i in range(len(attempts))]


def _summed(own: Mapping[str, Verdict], params: RewardsParams) -> Verdict:
    for name, verdict in own.items():
        if verdict.is_infrastructure:
            return Verdict(verdict.status, reason=f"{name}: {verdict.reason}"[:300], seconds=verdict.seconds)
    values = {
        name: 0.0 if v.status != "graded" else v.score if v.reward is None else v.reward
        for name, v in own.items()
        if v.status != "abstained"
    }
    seconds = sum(v.seconds for v in own.values())
    if not values:
        return Verdict("abstained", reason="all reward functions returned None", seconds=seconds)
    try:
        steps = steps_of_one(own.items())
    except ValueError as exc:
        return Verdict("verifier_error", reason=str(exc), seconds=seconds)
    whole = verdict_of(sum(params.weights.get(name, 1.0) * value for name, value in values.items()), params.success)
    shown = "; ".join(f"{name} {value:g}" for name, value in values.items())
    extracted = next((v.extracted for v in own.values() if v.extracted is not None), None)
    reason, parts = f"{whole.reason}: {shown}"[:300], tuple(values.items())
    return Verdict(whole.status, whole.score, reason, extracted, seconds, whole.reward, whole.right, parts, steps)
