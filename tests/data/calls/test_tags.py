"""Calls as short tags: reading and writing are each other's inverse, and mistakes are named for the policy."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verizero.pipeline.data.calls import tags
from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.errors import DataError

TYPES: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(st.characters(codec="utf-8"), max_size=12)
    | st.sampled_from(['"', "a b", "<add 1>", "[1]", "7", " "]),
    "integer": st.integers(-1000, 1000),
    "number": st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False),
    "boolean": st.booleans(),
    "array": st.lists(st.integers() | st.text(max_size=4), max_size=3),
    "object": st.dictionaries(st.text(max_size=3), st.none() | st.text(max_size=3), max_size=2),
}


def schema(name: str, **types: str) -> ToolSchema:
    return ToolSchema(name, "", {"type": "object", "properties": {key: {"type": t} for key, t in types.items()}})


ADD, SQL, WRITE = (
    schema("add", a="integer", b="integer"),
    schema("sql", query="string"),
    schema("write", path="string", text="string"),
)
TOOLS = (ADD, SQL, WRITE)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("<add 27 58>", "", [("add", {"a": 27, "b": 58})]),
        ("so <add 1 2> <add 3 4>", "so  ", [("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4})]),
        ("<sql select a from t where b<3>", "", [("sql", {"query": "select a from t where b<3"})]),
        ('<sql "a > b">', "", [("sql", {"query": "a > b"})]),
        ("<write a.txt two words >", "", [("write", {"path": "a.txt", "text": "two words"})]),
        ("<add 1 x>", "", [("add", {"a": 1, "b": "x"})]),
        ("<add 1.5 true>", "", [("add", {"a": "1.5", "b": "true"})]),
        ("<add 1e999 NaN>", "", [("add", {"a": "1e999", "b": "NaN"})]),
        ("<add>", "", [("add", {})]),
        ("a <b and c> d <answer>4</answer>", "a <b and c> d <answer>4</answer>", []),
        ("<adder 1>.", "<adder 1>.", []),
    ],
)
def test_what_is_read(text, content, calls):
    result = tags.read(text, TOOLS)
    assert (result.content, list(result.calls), result.unread) == (content, calls, None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<add 1 2", "no '>'"),
        ("<add 1 2 3>", r"add takes 2 arguments \(a, b\)"),
        ('<sql "a>', "at '\"a>'"),
        ('<write "a"b c>', 'space is missing after "a"'),
        ("<add " + "[" * 100_000 + ">", "nested too deeply"),
        ("<sqk a b>", "no tool sqk; did you mean sql"),
        ("<mul 1 2> ", "no tool mul; tools: add, sql, write"),
    ],
)
def test_what_cannot_be_read_is_answered_with_the_reason(text, reason):
    result = tags.read(text, TOOLS)
    assert (result.content, list(result.calls)) == (text, [])
    assert result.unread is not None
    with pytest.raises(ValueError, match=reason):
        raise ValueError(result.unread)


def test_without_tools_a_tag_is_text():
    assert tags.read("<add 1 2>").content == "<add 1 2>"
    assert not tags.read("<add 1 2>").calls


@pytest.mark.run
@settings(max_examples=150)
@given(st.data())
def test_reading_undoes_writing(data):
    types = data.draw(st.lists(st.sampled_from(sorted(TYPES)), max_size=3))
    tool = schema("use", **{f"p{i}": t for i, t in enumerate(types)})
    number = data.draw(st.integers(0, len(types)))
    calls = [
        ("use", {f"p{i}": data.draw(TYPES[t]) for i, t in enumerate(types[:number])})
        for _ in range(data.draw(st.integers(0, 2)))
    ]
    content = data.draw(st.text(st.characters(exclude_characters="<"), max_size=8))
    result = tags.read(tags.write(content, calls, [tool]), [tool])
    assert (result.content, list(result.calls), result.unread) == (content, calls, None)
    assert [list(map(type, a.values())) for _, a in result.calls] == [list(map(type, a.values())) for _, a in calls]


def test_writing_without_schemas_gives_the_same_tags():
    calls = [
        ("add", {"a": 1, "b": -2}),
        ("sql", {"query": "select 1 from t"}),
        ("write", {"path": "a b", "text": "c d"}),
    ]
    text = tags.write("x", calls)
    assert text == 'x<add 1 -2><sql select 1 from t><write "a b" "c d">'
    assert list(tags.read(text, TOOLS).calls) == calls


def test_what_a_tag_cannot_hold_is_refused():
    with pytest.raises(DataError, match="order of its properties, a, b"):
        tags.write("", [("add", {"b": 1})], TOOLS)
    with pytest.raises(DataError, match="'a b'"):
        tags.write("", [("a b", {})])
