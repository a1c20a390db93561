"""The label policy, point by point: what is right and what is wrong by default."""

from __future__ import annotations

import pytest

from verifiers.mathematics import MathParams, grade

POLICY: dict[str, list[tuple[str, list[str], list[str]]]] = {
    "numbers are exact": [
        (r"\frac{1}{3}", [r"\frac{2}{6}", r"0.\overline{3}"], ["0.33", "0.333333"]),
        (r"\sqrt{2}", ["2^{1/2}"], ["1.414", "1.41421356"]),
        ("42", ["42.0", r"\frac{84}{2}"], ["41.999", "42.0001"]),
    ],
    "only a gold that is a shown rounded decimal takes what rounds to it": [
        ("3.14", [r"\pi", "3.1416"], ["3.15", "3.1", "3.146"]),
        (r"\pi", [r"\pi"], ["3.14", "3.14159265"]),
    ],
    "percent": [(r"35\%", ["35", "0.35", r"35\%", r"\frac{7}{20}"], ["3.5", r"0.35\%"]), ("0.35", [r"35\%"], ["35"])],
    "currency and units may be omitted on either side": [
        (r"5\text{ cm}", ["5"], ["6"]),
        ("5", [r"5\text{ cm}", r"\$5"], [r"6\text{ cm}"]),
        (r"\$5", ["5", r"5\text{ dollars}"], ["50"]),
    ],
    "a stated other unit, power or scale is wrong unless it converts": [
        (
            r"5\text{ cm}",
            [r"50\text{ mm}", r"0.05\text{ m}"],
            [r"5\text{ m}", r"5\text{ cm}^2", r"5\text{ kg}", r"50\text{ cm}"],
        ),
        (r"\$5", [r"500\text{ cents}"], ["€5", r"5\text{ cents}", r"\$5\text{ million}"]),
    ],
    "sets and solution lists are unordered": [
        (r"\{1,2,3\}", [r"\{3,1,2\}", "2, 3, 1"], [r"\{1,2\}", r"\{1,2,3,4\}"]),
        ("x=1, x=2", [r"2\text{ or }1"], ["1"]),
    ],
    "tuples, points, ratios and matrices are ordered": [
        ("(1,2)", ["(1, 2)"], ["(2,1)"]),
        ("1:2:3", ["2:4:6"], ["3:2:1", "1:3:2"]),
        (
            r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
            [r"\begin{bmatrix}1&2\\3&4\end{bmatrix}"],
            [r"\begin{pmatrix}1&3\\2&4\end{pmatrix}"],
        ),
    ],
    "open and closed ends differ": [("[1,2)", ["[1,2)"], ["(1,2)", "[1,2]", "(1,2]"])],
    "a solved inequality is its interval, in both directions": [
        ("x>3", [r"(3,\infty)"], [r"[3,\infty)"]),
        (r"(3,\infty)", ["x>3"], [r"x\ge3"]),
    ],
    "an unsolved restatement is wrong": [("x>3", [], ["2x>6", "x-3>0"]), ("(-2,2)", [], ["x^2<4"])],
    "equations of the same curve are equal": [
        ("y=2x+1", ["2x-y+1=0", "2y=4x+2"], ["y=2x-1", "x=2y+1"]),
        ("x^2+y^2=4", ["2x^2+2y^2=8"], ["x^2-y^2=4"]),
    ],
    "x = 3 equals 3, and chains end in the value": [
        ("3", ["x=3", r"x=\frac{6}{2}=3"], ["x=4", "x=3=4"]),
        ("x=3", ["3"], ["y^2=3"]),
    ],
    "text is compared without case, macro, article and final dot": [
        (r"\text{east}", ["East", r"\textbf{EAST}", r"\text{the east.}"], [r"\text{west}", r"\text{not east}"])
    ],
    "choice letters in any decoration": [
        ("C", ["(C)", "c", r"\textbf{(C)}", "C.", r"\text{C) } 42", r"\text{Option C}"], ["D", "42", "C, D"])
    ],
    "the choice's text alone only when the gold shows it": [("(C) 42", ["C", "42"], ["43", "D"]), ("C", [], ["42"])],
    "hedges are wrong": [
        ("42", [], [r"42\text{ or }43", "42, 43", "42=43", "x=42=43", r"42\text{, maybe } 43"]),
        ("B", [], [r"\text{A or B}", "A, B"]),
    ],
}
CASES = [(point, *case) for point, cases in POLICY.items() for case in cases]


@pytest.mark.parametrize(("point", "gold", "right", "wrong"), CASES)
def test_the_policy_by_default(point: str, gold: str, right: list[str], wrong: list[str]) -> None:
    for answer in [gold, *right]:
        assert grade(f"\\boxed{{{answer}}}", gold).is_correct, (point, gold, answer)
    for answer in wrong:
        verdict = grade(f"\\boxed{{{answer}}}", gold)
        assert (verdict.status, verdict.score) == ("graded", 0.0), (point, gold, answer, verdict)


ANSWERED = [
    r"<think>\boxed{41}</think> \boxed{41}, no: \fbox{42}",
    r"\boxed{41} is too small; \boxed{42}",
    "#### 42",
    "The answer is 42.",
    "**Answer:** 42",
    "<answer>42</answer>",
    "Therefore the total is $42$.",
]
UNANSWERED = [
    "<think>42",
    r"<think>\boxed{42}</think>",
    r"<think>41</think>\boxed{42",
    "The total of 42 is then",
    "Therefore we have 40 + 2 = 42 and",
    "42 apples were mentioned first, but what is asked?",
]


@pytest.mark.parametrize("response", ANSWERED)
def test_where_the_answer_stands(response: str) -> None:
    assert grade(response, "42").is_correct


@pytest.mark.parametrize("response", UNANSWERED)
def test_where_no_answer_stands(response: str) -> None:
    verdict = grade(response, "42")
    assert (verdict.status, verdict.score) == ("no_answer", 0.0), verdict


@pytest.mark.parametrize("between", [" or ", " and ", ", ", "$ or $", r"\text{ or }"])
def test_boxes_joined_are_one_list(between: str) -> None:
    response = rf"\boxed{{1}}{between}\boxed{{2}}"
    assert grade(response, "1, 2").is_correct
    assert grade(response, "2").score == 0.0
    assert grade(response, "2", MathParams(join_boxes=False)).is_correct


def test_the_concluding_sentence_answers_only_where_allowed() -> None:
    response = "Therefore the total is $42$."
    assert grade(response, "42").is_correct
    assert grade(response, "42", MathParams(concluding_sentence=False)).reason == "no_cue"
    assert grade("The answer is 42.", "42", MathParams(concluding_sentence=False)).is_correct


def test_every_point_is_on_by_default() -> None:
    off = {name for name, field in MathParams.model_fields.items() if field.default is False}
    assert off <= {"decimal_comma"} | set(MathParams.__mro__[1].model_fields)
