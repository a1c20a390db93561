"""Attacks that held the trainer up: floods, patterns that never end, invisible letters. Others are in rows.jsonl."""

import pytest

from tests.verifiers.floods import VERIFIERS, floods
from verizero.pipeline.types import Attempt
from verizero.verifiers import json_schema
from verizero.verifiers._sandbox_jobs import Outcome
from verizero.verifiers.answer import final_answer, is_blank
from verizero.verifiers.base import load
from verizero.verifiers.json_schema import QUICK, is_found

UNSEEN = "\u200b\ufeff\u2800\u3164 \u00ad\u115f"


def said(name, params, reference, response):
    return load(name).bind(params).score([Attempt(response, reference)])[0]


def test_what_nobody_sees_is_no_answer():
    assert is_blank(UNSEEN)
    assert not is_blank(UNSEEN + "0")
    assert not is_blank("🙂")
    for response in (UNSEEN, f"<think>x</think>{UNSEEN}"):
        assert final_answer(Attempt(response, "x")).reason == "empty_answer"


def test_patterns_that_can_run_for_long_are_known():
    quick = ["^[0-9]{3}-[0-9]{4}$", "^[a-z]+$", "abc", r"^\d{4}-\d{2}$", r"\w[\]-]{1,9}"]
    slow = ["^(?:ab|a|b)*$", "^(a+)+$", "^(a|a)*b*$", "(a*)*", "(?:a{1,9}){20}", r"(a)\1", "a*a*b", "(?=(a+))a+"]
    assert [p for p in [*quick, *slow] if QUICK.fullmatch(p)] == quick


@pytest.mark.run
def test_a_schemas_pattern_that_never_ends_is_searched_for_in_the_sandbox(monkeypatch):
    """Found or not, too slow, or the sandbox failed: each has its own status, and the trainer survives."""
    monkeypatch.setattr(json_schema, "LIMITS", json_schema.LIMITS.model_copy(update={"cpu_s": 0.5}))
    schema = {"type": "object", "patternProperties": {"^(x+)+$": {"pattern": "^(a+)+$"}}, "additionalProperties": False}
    for text, status, score in (
        ('{"xx": "aaaa"}', "graded", 1.0),
        ('{"xx": "aaaa!"}', "graded", 0.0),
        ('{"xy": "aaaa"}', "graded", 0.0),
        (f'{{"xx": "{"a" * 40}!"}}', "timeout", 0.0),
        (f'{{"{"x" * 40}!": "aaaa"}}', "timeout", 0.0),
    ):
        verdict = said("json_schema", {}, {"schema": schema}, text)
        assert (verdict.status, verdict.score) == (status, score), (text, verdict)
    is_found.cache_clear()
    monkeypatch.setattr(json_schema, "runner", lambda _: lambda jobs: [Outcome("sandbox_error", detail="lost")])
    assert said("json_schema", {}, {"schema": schema}, '{"xx": "aaaa"}').status == "sandbox_error"
    assert said("json_schema", {}, {"schema": {"pattern": "^a+$"}}, '"aaa!"').score == 0
    assert said("json_schema", {}, {"schema": {"pattern": "("}}, '"a"').status == "verifier_error"
    is_found.cache_clear()


@pytest.mark.run
def test_floods_are_refused():
    """A reader or verifier that is quadratic in the length would take hours here."""
    bound = [(load(name).bind(params), reference) for name, params, reference in VERIFIERS]
    for piece, text in floods():
        closed_at_once = piece == "}" and text.startswith("\\boxed")
        for (name, _, _), (verifier, reference) in zip(VERIFIERS, bound, strict=True):  # they read the same answer
            verdict = verifier.score([Attempt(text, reference)])[0]
            assert verdict.score == 0.0 or closed_at_once, (name, piece, text[:20], verdict)


def test_many_items_are_compared_without_all_pairs():
    items = ",".join([*map(str, range(3_500)), "[0]"])
    assert said("json_schema", {}, {"schema": {"uniqueItems": True}}, f"[{items}]").is_correct
