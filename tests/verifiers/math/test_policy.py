"""The label policy, point by point: what is right and what is wrong by default."""

from __future__ import annotations

import pytest

from verizero.verifiers.mathematics import MathParams, grade

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
    "a congruence is of the same thing": [
        (
            r"x \equiv 3 \pmod 7",
            ["x = 7k+3", r"n \equiv 10 \pmod 7", r"3 \pmod 7"],
            [r"2x \equiv 3 \pmod 7", r"-x \equiv 3 \pmod 7", r"x > 3 \pmod 7", r"x \neq 7k+3", "2x = 7k+3"],
        ),
        (r"3 \pmod 7", [], [r"\text{not } x \equiv 3 \pmod 7"]),
        (r"x^2 \equiv 1 \pmod 8", [r"x^2 \equiv 9 \pmod 8"], [r"x \equiv 1 \pmod 8"]),
    ],
    "what is counted may be said more closely, not multiplied or taken back": [
        (
            r"15\text{ apples}",
            ["15", r"15\text{ red apples}"],
            [
                r"15\text{ apples}^2",
                r"15\text{ apples squared}",
                r"15\text{ apples (false)}",
            ],
        ),
        (r"300^\circ", ["300"], [r"300^\circ\text{ squared}"]),
    ],
    "a constant of integration takes in a number, no other name does": [
        ("x^2+C", ["x^2+1+C", "x^2+K"], ["x^2+x+C", "x^2"]),
        ("(k,k+1)", ["(k,1+k)"], ["(k,k+2)"]),
        ("x^2+bx+c", [], ["x^2+bx+c+1"]),
    ],
    "what belongs to a set or has a name is that thing itself": [
        ("(2,5)", [r"x\in(2,5)"], [r"-x\in(2,5)", r"2x\in(2,5)"]),
        (r"\{1,2\}", [r"x\in\{1,2\}"], [r"-x\in\{1,2\}"]),
        ("(1,2,3)", ["(a,b,c)=(1,2,3)"], ["(a,c)=(1,2,3)"]),
        (
            r"f^{-1}(x)=\frac{x-3}{2}",
            [r"\frac{x-3}{2}", r"y=\frac{x-3}{2}"],
            [r"f^{-1}(x)=\frac{x+3}{2}", r"g^{-1}(x)=\frac{x-3}{2}"],
        ),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", [r"A^{-1}=\begin{pmatrix}1&2\\3&4\end{pmatrix}"], ["A^{-1}=4"]),
    ],
    "members of a chain that contradict each other are wrong, of any type": [
        (r"5\text{ cm}", [r"50\text{ mm}=5\text{ cm}"], [r"6\text{ cm}=5\text{ cm}", r"777=5\text{ cm}"]),
        ("(2,5)", ["(2,4+1)=(2,5)"], ["(2,6)=(2,5)"]),
        (r"\{1,2\}", [r"\{2,1\}=\{1,2\}"], [r"\{1,3\}=\{1,2\}"]),
        ("3x+2", ["2x+x+2=3x+2"], ["777=3x+2"]),
        ("42", [r"40+2\Rightarrow 42"], [r"43\Rightarrow 42"]),
        ("x>2", [], ["x>2, x\\ge 2", r"x>2\text{ or }x\ge 2"]),
    ],
    "a label before the value says of what it is": [
        (
            "17",
            [
                r"\det A = 17",
                r"\operatorname{rank}(A) = 17",
                r"P(X = 4) = 17",
                r"\sigma^2 = 17",
                r"\|v\| = 17",
                r"2^{10} \bmod 7 = 17",
                r"(f \circ g)(2) = 17",
                r"\nabla f(1,2) = 17",
            ],
            [r"\det A = 18", "x^2 = 17", r"\sin\theta = 17", r"P(X = 17) = 4", r"\gcd(4,6) = 17", r"\det A = 18 = 17"],
        ),
        (r"\det A = 17", ["17", r"\det(A) = 17"], ["16"]),
    ],
    "a derivation may go on over lines": [
        (
            "212",
            [r"\begin{aligned} x &= 174 + 38 \\ &= 212 \end{aligned}", r"x = 174 + 38 \\ = 212"],
            [r"\begin{aligned} x &= 212 \\ &= 213 \end{aligned}", r"\begin{aligned} x &= 213 \\ &= 212 \end{aligned}"],
        ),
        (r"n = 14k + 3, k \in \mathbb{Z}", [r"{n=14k+3,\ k\in\mathbb{Z}}"], [r"{n=14k+4,\ k\in\mathbb{Z}}"]),
    ],
    "functions of a narrow or a far domain are compared where they are defined": [
        (r"\frac{6}{\sqrt{1-36x^2}}", ["6(1-36x^2)^{-1/2}"], ["6(1-36x^2)^{1/2}", r"\frac{6}{\sqrt{1-35x^2}}"]),
        (r"\sqrt{x-200}", ["(x-200)^{1/2}"], [r"\sqrt{x-201}"]),
    ],
    "zeros at the end of a long decimal say that it is rounded": [
        ("19.900", ["19.8997", "19.9"], ["19.898", "19.901"]),
        ("12.50", ["12.5"], ["12.496", "12.49"]),
    ],
    "a time with seconds is a ratio too where it is in lowest terms": [("9:14:19", [r"9 : 14 : 19\,"], ["9:14:18"])],
    "hedges are wrong": [
        ("42", [], [r"42\text{ or }43", "42, 43", "42=43", "x=42=43", r"42\text{, maybe } 43"]),
        ("B", [], [r"\text{A or B}", "A, B", "(B)?", r"\text{(B) is wrong}", "(B) (false)"]),
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
HEDGED = [
    r"The answer is $\boxed{42}$ or $43$.",
    r"The answer is \boxed{42} (or 43).",
    r"It is \boxed{42}, or possibly \(43\).",
    r"It is either $43$ or $\boxed{42}$.",
]
RESTATED = [
    r"So we get \boxed{42} or $\frac{84}{2}$.",
    r"It is \boxed{42}, or forty-two in words.",
    r"It is either $42$ or, which is the same, \boxed{42}.",
    r"Take $x = 43$ or so; the answer is \boxed{42}.",
]
UNANSWERED = [
    "The wrong answer is $42$.",
    "If it were so, the answer would be $42$.",
    "We add what is left. So it is at least $42$.",
    "The answer isn't $42$.",
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


@pytest.mark.parametrize("response", HEDGED)
def test_a_second_candidate_beside_the_box_is_a_hedge(response: str) -> None:
    verdict = grade(response, "42")
    assert (verdict.status, verdict.score, verdict.reason) == ("graded", 0.0, "hedge: " + verdict.reason[7:]), verdict


@pytest.mark.parametrize("response", RESTATED)
def test_the_same_answer_said_twice_is_none(response: str) -> None:
    assert grade(response, "42").is_correct


def test_a_decimal_beside_an_exact_answer_is_no_hedge() -> None:
    assert grade(r"So it is $\boxed{\sqrt{2}}$ or 1.41.", r"\sqrt{2}").is_correct
    assert grade(r"So it is $\boxed{\sqrt{2}}$ or 1.73.", r"\sqrt{2}").score == 0.0


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
