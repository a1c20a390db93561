"""Equations as steps: each equation of a response is a step, right if it holds, and the answer is the last step.

It has no idea whether an equation serves the answer: `1+1=2` is right wherever it occurs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.base import BoundVerifier, verifier
from verizero.verifiers.countdown import BadExpression, evaluate
from verizero.verifiers.math import math
from verizero.verifiers.mathematics import MathParams

NUMBER = r"\(*\d+\)*"
EQUATION = re.compile(
    r"(?<![\w.,+\-*/^=(])"  # not from the middle of a decimal number or of a longer expression
    rf"(?P<left>{NUMBER}(?: *[-+*/×÷·−–] *{NUMBER})+) *= *(?P<right>-?\d+(?:/\d+)?)"
    r"(?![\d^]|[.,]\d| *[+*/=×÷·]| ?- ?\d)"
)


@verifier(batch=True)
def equations(attempts: Sequence[Attempt], params: MathParams) -> list[Verdict]:
    """Return the verdicts of `math`, each with a step for every equation (1 if it holds, else 0) and for the answer.

    An equation has whole numbers, the four operations and brackets on its left, and a whole number or a fraction on
    its right; others are no steps. The last step is what follows the last equation, and is worth the answer's score.
    """
    verdicts = BoundVerifier(math, params).score(attempts)
    return [
        replace(v, steps=_steps(a.response, v.score)) if v.status == "graded" else v
        for a, v in zip(attempts, verdicts, strict=True)
    ]


def _steps(response: str, score: float) -> tuple[tuple[str, float], ...]:
    steps: list[tuple[str, float]] = []
    end = 0
    for equation in EQUATION.finditer(response):
        try:
            value, _ = evaluate(equation["left"], target=0)
            right = Fraction(equation["right"])
        except (BadExpression, ZeroDivisionError):
            continue
        steps.append((equation[0], float(value == right)))
        end = equation.end()
    if response[end:]:
        return (*steps, (response[end:], score))
    return (*steps[:-1], (steps[-1][0], score)) if steps else ()
