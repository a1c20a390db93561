"""Mathematical answers: extraction, reading and equality. `grade` one response, or `score` many."""

from verizero.verifiers.mathematics.grader import MathParams, grade, score

__all__ = ["MathParams", "grade", "score"]
