"""Mathematical answers: extraction, reading and equality. `grade` one response, or `score` many."""

from verifiers.mathematics.grader import grade, score
from verifiers.mathematics.policy import MathParams

__all__ = ["MathParams", "grade", "score"]
