"""The forms of calls: reading and writing are each other's inverse, and mistakes are named for the policy."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verizero.pipeline import registry
from verizero.pipeline.data.calls import hermes, tags, xml
from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.errors import DataError


def schema(name, **types):
    return ToolSchema(name, "", {"type": "object", "properties": {key: {"type": t} for key, t in types.items()}})


USE = schema("use", a="integer", b="number", q="string", flags="array", on="boolean", o="object")
TOOLS = (
    schema("add", a="integer", b="integer"),
    schema("sql", query="string"),
    schema("write", path="string", text="string"),
    USE,
)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="<"), max_size=9)
VALUES = {
    "a": st.integers(-1000, 1000),
    "b": st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False),
    "q": TEXT | st.sampled_from(["7", "null", '{"name": 1}', "a\n\nb", "<b>", '"', "<add 1>", "[1]", " "]),
    "flags": st.lists(st.integers() | TEXT, max_size=3),
    "on": st.booleans(),
    "o": st.dictionaries(TEXT, st.none() | TEXT, max_size=2),
}
SOME = st.fixed_dictionaries({}, optional=VALUES)
FIRST = (
    st.integers(0, len(VALUES))
    .flatmap(lambda n: st.tuples(*list(VALUES.values())[:n]))
    .map(lambda values: dict(zip(VALUES, values, strict=False)))
)
"""Tags have no names: their arguments are the first properties."""


def test_every_form_has_both_directions():
    for name in ("hermes", "tags", "xml"):
        assert name in registry.names("call_forms")
    for name in registry.names("call_forms"):
        form = registry.find("call_forms", name)
        assert form.read(form.write("words", ())).content == "words"


@pytest.mark.run
@pytest.mark.parametrize(
    ("form", "names", "arguments"),
    [(hermes, ["use", "other tool"], SOME), (xml, ["use"], SOME), (tags, ["use"], FIRST)],
)
@settings(max_examples=80)
@given(data=st.data())
def test_reading_undoes_writing(form, names, arguments, data):
    content = data.draw(TEXT)
    calls = data.draw(st.lists(st.tuples(st.sampled_from(names), arguments), max_size=3))
    result = form.read(form.write(content, calls, [USE]), [USE])
    assert (result.content, list(result.calls), result.unread) == (content, calls, None)
    assert [list(map(type, a.values())) for _, a in result.calls] == [list(map(type, a.values())) for _, a in calls]


F, ON = (
    "<tool_call><function=f>",
    "<tool_call><function=use>\n<parameter=on>\nTrue\n</parameter></function></tool_call>",
)


@pytest.mark.parametrize(
    ("form", "text", "content", "calls"),
    [
        (
            hermes,
            'So\n<tool_call>\n{"name": "f", "arguments": {"x": "</tool_call>"}}\n</tool_call>',
            "So",
            [("f", {"x": "</tool_call>"})],
        ),
        (hermes, '<tool_call>{"name": "f"}</tool_call> done ', "done", [("f", {})]),
        (xml, f"{F}</function></tool_call>", "", [("f", {})]),
        (xml, f"a\n\n{ON}", "a\n", [("use", {"on": True})]),
        (
            xml,
            "<tool_call><function=use><parameter=a>x</parameter></function></tool_call>",
            "",
            [("use", {"a": "x"})],
        ),
        (tags, "<add 27 58>", "", [("add", {"a": 27, "b": 58})]),
        (tags, "so <add 1 2> <add 3 4>", "so  ", [("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4})]),
        (tags, "<sql select a from t where b<3>", "", [("sql", {"query": "select a from t where b<3"})]),
        (tags, '<sql "a > b">', "", [("sql", {"query": "a > b"})]),
        (tags, "<write a.txt two words >", "", [("write", {"path": "a.txt", "text": "two words"})]),
        (tags, "<add 1 x>", "", [("add", {"a": 1, "b": "x"})]),
        (tags, "<add 1.5 true>", "", [("add", {"a": "1.5", "b": "true"})]),
        (tags, "<add 1e999 NaN>", "", [("add", {"a": "1e999", "b": "NaN"})]),
        (tags, "<add>", "", [("add", {})]),
        (tags, "a <b and c> d <answer>4</answer>", "a <b and c> d <answer>4</answer>", []),
        (tags, "<adder 1>.", "<adder 1>.", []),
    ],
)
def test_what_is_read(form, text, content, calls):
    result = form.read(text, TOOLS)
    assert (result.content, list(result.calls), result.unread) == (content, calls, None)


@pytest.mark.parametrize(
    ("form", "text", "reason"),
    [
        (hermes, '<tool_call>{"name": "f", "arguments": {</tool_call>', "Expecting property name"),
        (hermes, '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', '"arguments" must be an object, got [1]'),
        (hermes, '<tool_call>{"arguments": {}}</tool_call>', '"name", a text'),
        (hermes, '<tool_call>{"name": "f"} or', "</tool_call> is missing behind the JSON, and there is 'or'"),
        (hermes, '{"name": "f"}</tool_call>', "</tool_call> has no <tool_call>"),
        (hermes, '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>', "NaN is no number"),
        (hermes, '<tool_call>{"name": "f", "arguments": {"x": 1e999}}</tool_call>', "1e999 is too large"),
        (hermes, '<tool_call>{"name": "f", "arguments": {"x": "\\ud800"}}</tool_call>', "half of a pair"),
        (hermes, '<tool_call>{"name": "f", "arguments": {"x": ' + "9" * 5000 + "}}</tool_call>", "4300"),
        (hermes, "<tool_call>" + "[" * 100_000, "nested too deeply"),
        (xml, "<tool_call>\nadd\n</tool_call>", "<function=NAME> must follow"),
        (xml, f"{F}<parameter=a>1</function></tool_call>", "<parameter=a> has no </parameter>"),
        (xml, f"{F}2</function></tool_call>", "there is '2</function>"),
        (xml, f"{F}</function>", "and there is '</function>'"),
        (tags, "<add 1 2", "no '>'"),
        (tags, "<add 1 2 3>", "add takes 2 arguments (a, b)"),
        (tags, '<sql "a>', "at '\"a>'"),
        (tags, '<write "a"b c>', 'space is missing after "a"'),
        (tags, "<add " + "[" * 100_000 + ">", "nested too deeply"),
        (tags, "<sqk a b>", "no tool sqk; did you mean sql"),
        (tags, "<mul 1 2> ", "no tool mul; tools: add, sql, write, use"),
    ],
)
def test_what_cannot_be_read_is_answered_with_the_reason(form, text, reason):
    result = form.read(text, TOOLS)
    assert (result.content, tuple(result.calls)) == (text, ())
    assert reason in result.unread


@pytest.mark.parametrize(
    ("form", "content", "calls", "words"),
    [
        (hermes, "<tool_call>", [], "."),
        (xml, "", [("f", {"x": "</parameter>"})], "."),
        (tags, "", [("add", {"b": 1})], "order of its properties, a, b"),
        (tags, "", [("a b", {})], "'a b'"),
    ],
)
def test_what_a_form_cannot_write_is_refused(form, content, calls, words):
    with pytest.raises(DataError, match=words):
        form.write(content, calls, TOOLS)


def test_tags_without_schemas():
    read = tags.read("<add 1 2>")
    assert (read.content, tuple(read.calls)) == ("<add 1 2>", ())
    calls = [
        ("add", {"a": 1, "b": -2}),
        ("sql", {"query": "select 1 from t"}),
        ("write", {"path": "a b", "text": "c d"}),
    ]
    text = tags.write("x", calls)
    assert text == 'x<add 1 -2><sql select 1 from t><write "a b" "c d">'
    assert list(tags.read(text, TOOLS).calls) == calls
