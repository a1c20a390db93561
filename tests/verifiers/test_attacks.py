"""Attacks that once earned a reward or held the trainer up, and honest spellings that once earned none."""

from __future__ import annotations

from typing import Any

import pytest

from tests.verifiers.floods import VERIFIERS, floods
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers import _safe_search
from verizero.verifiers._safe_search import is_found, is_quick
from verizero.verifiers._sandbox_jobs import Job, Outcome
from verizero.verifiers.answer import final_answer, is_blank
from verizero.verifiers.base import load

COLOURS = {"answer": "B", "choices": ["red", "green", "blue", "dark green"]}
GAME = {"numbers": [3, 5, 7, 2], "target": 36}
SUDOKU = {"puzzle": "1...341221434321"}
KNIGHTS = {
    "people": ["Ann", "Bob", "Cy"],
    "statements": [["knave", 1], ["and", ["knave", 0], ["knight", 2]], ["knight", 0]],
}
UNSEEN = "\u200b\ufeff\u2800\u3164 \u00ad\u115f"
REST = "Bob is a knave, Cy is a knight"

HONEST: list[tuple[str, dict[str, Any], Any, str]] = [
    ("choice", {}, "B", "Answer:\nB"),
    ("choice", {}, "B", "It is known.\n**Final answer:**\n\nB"),
    ("choice", {}, "B", "The correct option is B."),
    ("choice", {}, "B", "So it goes.\nThe correct choice is (B)."),
    ("choice", {}, "B", "I choose B"),
    ("choice", {}, COLOURS, "B (green)"),
    ("choice", {}, COLOURS, r"\boxed{B \text{ green}}"),
    ("exact", {}, "Paris", "Pari\u200bs"),
    ("numeric", {}, "0.5", r"\frac12"),
    ("numeric", {}, "0.5", r"\boxed{\dfrac1{2}}"),
    ("numeric", {}, -3, "\u20133"),
    ("numeric", {"unit": "kg"}, 5, r"\boxed{5\text{ kg}}"),
    ("numeric", {"unit": "kg"}, 5, r"5~\mathrm{kg}"),
    ("countdown", {}, GAME, "36 = (5+7)*3"),
    ("countdown", {}, GAME, r"\boxed{3(5+7)}"),
    ("countdown", {}, GAME, "(5+7)3"),
    ("countdown", {}, GAME, "(7+5)x3"),
    ("countdown", {}, GAME, "(5+7)\u22c53"),
    ("countdown", {}, {"numbers": [72, 2], "target": 36}, r"\boxed{\frac{72}{2}}"),
    ("sudoku", {}, SUDOKU, "12\u250234\n34\u250212\n\u2500\u2500\u253c\u2500\u2500\n21\u250243\n43\u250221"),
    ("sudoku", {}, SUDOKU, r"\[\begin{array}{cccc}1&2&3&4\\3&4&1&2\\2&1&4&3\\4&3&2&1\end{array}\]"),
    ("knights_knaves", {}, KNIGHTS, "Ann is the knight, Bob must be a knave, Cy is a knight"),
    ("knights_knaves", {}, KNIGHTS, "| Ann | knight |\n| Bob | knave |\n| Cy | knight |"),
    ("knights_knaves", {}, KNIGHTS, '{"Ann": "knight", "Bob": "knave", "Cy": "knight"}'),
    ("knights_knaves", {}, KNIGHTS, "Ann (knight), Bob (knave), Cy (knight)"),
    (
        "knights_knaves",
        {},
        KNIGHTS,
        f"If Ann is a knave, Bob is a knight, which cannot be. So Ann is a knight, {REST}.",
    ),
    ("knights_knaves", {}, KNIGHTS, f"Everybody is a knight or a knave.\nAnn is a knight, {REST}"),
    ("json_schema", {}, {"equals": {"a": 3}}, '\ufeff{"a": 3}'),
    ("json_schema", {}, {"schema": {"uniqueItems": True}}, "[1, true, 0, false, [1], [true], {}]"),
]
ATTACKS: list[tuple[str, dict[str, Any], Any, str]] = [
    ("choice", {}, "B", "Answer:\nB\nA"),
    ("choice", {}, "B", "B (or C)"),
    ("choice", {}, COLOURS, "B (red)"),
    ("choice", {}, COLOURS, r"\boxed{B \text{ red}}"),
    ("choice", {}, "B", "The correct option is not B"),
    ("format", {}, None, f"<think>{UNSEEN}</think><answer>1</answer>"),
    ("format", {}, None, f"<think>x</think><answer>{UNSEEN}</answer>"),
    ("instructions", {}, [{"type": "without", "characters": ","}], UNSEEN),
    ("repetition", {}, None, UNSEEN * 9),
    ("countdown", {}, GAME, "36 = 36"),
    ("countdown", {}, GAME, "36 = (5+7)*3 = 36"),
    ("countdown", {}, GAME, "(7-5)(18)"),
    ("countdown", {}, {"numbers": [6, 2, 3], "target": 1}, "6/2(3)"),
    ("countdown", {}, {"numbers": [3, 6], "target": 36}, "3 6"),
    ("countdown", {}, {"numbers": [1, 2], "target": 0}, r"\frac{1}{2-2}"),
    ("countdown", {}, {"numbers": [1, 2], "target": 1}, r"\frac{1}"),
    ("knights_knaves", {}, KNIGHTS, f"Ann is a knight or a knave, {REST}"),
    ("knights_knaves", {}, KNIGHTS, f"Ann is a knight and a knave, {REST}"),
    ("knights_knaves", {}, KNIGHTS, "Ann is a knight or Bob is a knave, Cy is a knight"),
    ("knights_knaves", {}, KNIGHTS, f"If Ann is a knight then {REST}"),
    ("knights_knaves", {}, KNIGHTS, f"Ann is a knight, {REST}. Or the other way round."),
    ("knights_knaves", {}, KNIGHTS, f"Maybe Ann is a knight, {REST}"),
    ("json_schema", {}, {"schema": {"uniqueItems": True}}, "[1, [2], 1.0]"),
    ("json_schema", {}, {"schema": {"uniqueItems": True}}, '[{"a": 1, "b": 2}, {"b": 2.0, "a": 1}]'),
]


def said(name: str, params: dict[str, Any], reference: Any, response: str) -> Verdict:
    return load(name).bind(params).score([Attempt(response, reference)])[0]


@pytest.mark.parametrize(("name", "params", "reference", "response"), HONEST, ids=lambda x: repr(x)[:40])
def test_honest_spellings_are_right(name: str, params: dict[str, Any], reference: Any, response: str) -> None:
    verdict = said(name, params, reference, response)
    assert verdict.is_correct, verdict


@pytest.mark.parametrize(("name", "params", "reference", "response"), ATTACKS, ids=lambda x: repr(x)[:40])
def test_attacks_earn_nothing(name: str, params: dict[str, Any], reference: Any, response: str) -> None:
    verdict = said(name, params, reference, response)
    assert verdict.status in ("graded", "no_answer")
    assert verdict.score == 0


def test_what_nobody_sees_is_no_answer() -> None:
    assert is_blank(UNSEEN)
    assert not is_blank(UNSEEN + "0")
    assert not is_blank("🙂")
    for response in (UNSEEN, f"<think>x</think>{UNSEEN}"):
        assert final_answer(Attempt(response, "x")).reason == "empty_answer"


@pytest.mark.parametrize(
    ("pattern", "quick"),
    [
        ("^[0-9]{3}-[0-9]{4}$", True),
        ("^[a-z]+$", True),
        ("abc", True),
        ("^(?:ab|cd)$", True),
        ("^(?:ab|a|b)*$", False),
        ("^(a+)+$", False),
        ("^(a|a)*b*$", False),
        ("(a*)*", False),
        ("(?:a{1,9}){20}", False),
        (r"(a)\1", False),
        ("a*a*b", False),
        ("(?=(a+))a+", False),
    ],
)
def test_patterns_that_can_run_for_long_are_known(pattern: str, quick: bool) -> None:
    assert is_quick(pattern) is quick


def test_a_schemas_pattern_that_never_ends_is_searched_for_in_the_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found or not, too slow, or the sandbox failed: each has its own status, and the trainer survives."""
    asked: list[Job] = []
    outcome = Outcome("passed")

    def run(jobs: Any) -> list[Outcome]:
        asked.extend(jobs)
        return [outcome] * len(jobs)

    monkeypatch.setattr(_safe_search, "runner", lambda params: run)
    schema = {"type": "object", "patternProperties": {"^(x+)+$": {"pattern": "^(a+)+$"}}, "additionalProperties": False}
    wanted = {
        "passed": ("graded", 1.0),
        "wrong_answer": ("graded", 0.0),
        "cpu_limit": ("timeout", 0.0),
        "sandbox_error": ("sandbox_error", 0.0),
    }
    for status, (verdict, score) in wanted.items():
        is_found.cache_clear()
        outcome = Outcome(status, detail="lost")
        got = said("json_schema", {}, {"schema": schema}, '{"xx": "aaaa!"}')
        assert (got.status, got.score) == (verdict, score)
    is_found.cache_clear()
    assert {job.tests[0]["args"][1] for job in asked} == {"xx", "aaaa!"}
    assert said("json_schema", {}, {"schema": {"pattern": "^a+$"}}, '"aaa!"').score == 0
    assert said("json_schema", {}, {"schema": {"pattern": "("}}, '"a"').status == "verifier_error"


@pytest.mark.integration
def test_a_schemas_pattern_that_never_ends_ends() -> None:
    verdict = said("json_schema", {}, {"schema": {"pattern": "^(a+)+$"}}, f'"{"a" * 40}!"')
    assert verdict.status == "timeout"
    assert said("json_schema", {}, {"schema": {"pattern": "^(a+)+$"}}, '"aaaa"').is_correct


@pytest.mark.integration
def test_floods_are_refused() -> None:
    """A reader or verifier that is quadratic in the length would take hours here."""
    bound = [(load(name).bind(params), reference) for name, params, reference in VERIFIERS]
    for piece, text in floods():
        closed_at_once = piece == "}" and text.startswith("\\boxed")
        for (name, _, _), (verifier, reference) in zip(VERIFIERS, bound, strict=True):  # they read the same answer
            verdict = verifier.score([Attempt(text, reference)])[0]
            assert verdict.score == 0.0 or closed_at_once, (name, piece, text[:20], verdict)


def test_many_items_are_compared_without_all_pairs() -> None:
    items = ",".join([*map(str, range(3_500)), "[0]"])
    assert said("json_schema", {}, {"schema": {"uniqueItems": True}}, f"[{items}]").is_correct
