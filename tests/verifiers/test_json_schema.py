"""The share of places that JSON has right, against a slow double."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verizero.pipeline.types import Attempt
from verizero.verifiers.base import load
from verizero.verifiers.json_schema import same

LEAVES = st.integers(-2, 2) | st.booleans() | st.sampled_from(["", "a", "b"]) | st.none()
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=2)
)
WANTED = {"name": "Ann", "home": {"city": "Oslo", "rooms": 3}}
HOME = {"type": "object", "properties": {"city": {"type": "string"}, "rooms": {"type": "integer"}}}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "home": HOME}, "required": ["name", "home"]}


def graded(value, wanted, grading="fraction", **reference):
    text = value if isinstance(value, str) and value.startswith("!") else json.dumps(value)
    verifier = load("json_schema").bind({"grading": grading})
    (verdict,) = verifier.score([Attempt(text.removeprefix("!"), {"equals": wanted, **reference})])
    return verdict


def lines_of(value, place=""):
    """Every value that holds no others, written as a line with the way to it."""
    if isinstance(value, dict) and value:
        return {line for key, item in value.items() for line in lines_of(item, f"{place}/{key}")}
    if isinstance(value, list) and value:
        return {line for i, item in enumerate(value) for line in lines_of(item, f"{place}[{i}]")}
    return {f"{place} = {json.dumps(value)}"}


@given(value=VALUES, wanted=VALUES)
def test_the_share_is_that_of_equal_lines_among_all_places(value, wanted):
    ours, theirs = lines_of(value), lines_of(wanted)
    places = {line.split(" = ")[0] for line in ours | theirs}
    want = 1.0 if same(value, wanted) else min(len(ours & theirs) / len(places), 0.99)
    verdict = graded(value, wanted)
    assert verdict.score == pytest.approx(want)
    assert verdict.is_correct == same(value, wanted)
    assert graded(value, wanted, "all").score == float(same(value, wanted))


@pytest.mark.parametrize(
    ("value", "score"),
    [
        (WANTED, 1.0),
        ({"name": "Ann", "home": {"city": "Rome", "rooms": 3}}, 2 / 3),
        ({"name": "Ann", "home": {"city": "Oslo", "rooms": "3"}}, 2 / 3),
        ({**WANTED, "age": 4}, 3 / 4),
        ({"name": "Ann", "city": "Oslo"}, 1 / 4),
        ({}, 0.0),
        ([WANTED], 0.0),
        ('!{"name": "Ann", "home"', 0.0),
    ],
)
def test_examples_with_a_schema(value, score):
    verdict = graded(value, WANTED, schema={**SCHEMA, "additionalProperties": False})
    assert verdict.score == pytest.approx(score)
    assert verdict.is_correct == (score == 1)


def test_a_value_that_the_schema_refuses_is_never_wholly_right_and_without_values_there_is_no_share():
    verdict = graded({"a": 1}, {"a": 1}, schema={"type": "array"})
    assert (verdict.score, verdict.is_correct) == (0.99, False)
    verifier = load("json_schema").bind({"grading": "fraction"})
    assert verifier.score([Attempt('{"a": 1}', {"schema": {"type": "array"}})])[0].score == 0.0
