"""Mathematical answers: extraction, reading and equality. `grade` one response, or `score` many."""

from verizero.verifiers.mathematics.grader import grade, score
from verizero.verifiers.mathematics.policy import MathParams

__all__ = ["MathParams", "grade", "score"]
