"""Kinds of answers that are easily read amiss: of each some that are right, and near misses that are wrong."""

from __future__ import annotations

import pytest

from verifiers.mathematics import grade

KINDS: dict[str, list[tuple[str, list[str], list[str]]]] = {
    "Chinese powers of ten take the digits before them": [
        ("310000", ["31万", "三十一万", r"31\text{万}", "31 万", "0.31百万"], ["3万", "3十", "三万", "3万1", "31千"]),
        ("3100", ["3.1千", "31百", "3千1百", "三千一百"], ["3百", "3千", "3十1百"]),
        ("35000", ["3.5万", "3万5千", "三万五千", "3万5000"], ["3万5", "3.5千"]),
        ("120000000", ["1.2亿", "1亿2000万", "一亿二千万", "12000万"], ["1亿", "1.2万", "1亿2"]),
        ("1000000000000", ["1万亿", "一万亿"], ["1亿", "10001亿"]),
        (r"20\%", ["百分之二十", "百分之20"], ["百分之2"]),
        (r"\frac23", ["三分之二", "3分之2"], ["二分之三"]),
        ("5000", [r"\frac{1}{2}万", "0.5万元"], [r"\frac{1}{2}"]),
    ],
    "words of Chinese join and compare": [
        (
            "x=2或x=3",
            [r"x=2\text{或}x=3", "x=2 或者 x=3", "2或3", r"x=3\text{ or }x=2"],
            ["x=2", "x=2或x=4", "2且4"],
        ),
        ("x=2, y=3", ["x=2且y=3", "x=2,且y=3", "x=2和y=3", "x=2以及y=3", r"x=2\text{且}y=3"], ["x=3且y=2"]),
        ("2, 3", ["2和3", "2与3", "2以及3", r"2\text{和}3", "2及3"], ["2和4", "3"]),
        ("x>3", ["x大于3", r"x\text{大于}3"], ["x大于等于3", "x小于3"]),
        (r"x\le 3", ["x小于或等于3", "x小于等于3", "x不大于3"], ["x小于3"]),
        ("x>3或x<1", [r"x<1\text{或}x>3", r"(-\infty,1)\cup(3,\infty)"], ["x>3且x<1", "1<x<3"]),
        (r"\emptyset", ["无解", r"\text{无解}"], ["0"]),
        (r"\mathbb{R}", ["全体实数", r"\text{任意实数}"], ["0"]),
    ],
}
CASES = [(kind, *case) for kind, cases in KINDS.items() for case in cases]


@pytest.mark.parametrize(("kind", "gold", "right", "wrong"), CASES)
def test_each_kind_is_told_apart(kind: str, gold: str, right: list[str], wrong: list[str]) -> None:
    for answer in [gold, *right]:
        verdict = grade(f"\\boxed{{{answer}}}", gold)
        assert verdict.is_correct, (kind, gold, answer, verdict)
    for answer in wrong:
        verdict = grade(f"\\boxed{{{answer}}}", gold)
        assert (verdict.status, verdict.score) == ("graded", 0.0), (kind, gold, answer, verdict)
