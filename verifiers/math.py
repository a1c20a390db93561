"""Mathematics: is the response's final answer equal to the gold one? The machinery is in `verifiers/mathematics/`."""

from __future__ import annotations

from collections.abc import Sequence

from verizero.pipeline.errors import DataError, GradingError
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.base import verifier
from verizero.verifiers.mathematics import MathParams, grade

__all__ = ["MathParams", "math"]


@verifier(batch=True)
def math(attempts: Sequence[Attempt], params: MathParams) -> list[Verdict]:
    """One verdict per attempt, in order: 1 if the final answer equals the reference under the label policy."""
    verdicts = []
    for attempt in attempts:
        try:
            verdicts.append(grade(attempt.response, attempt.reference, params, attempt.prompt, attempt.truncated))
        except (DataError, GradingError) as exc:
            verdicts.append(Verdict("verifier_error", reason=str(exc)[:300]))
    return verdicts
