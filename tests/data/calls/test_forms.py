"""The forms of calls that published models write."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verizero.pipeline import registry
from verizero.pipeline.data.calls import hermes, xml
from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.errors import DataError

TYPES = {"a": "integer", "b": "number", "q": "string", "flags": "array", "on": "boolean", "o": "object"}
TOOL = ToolSchema("use", "", {"type": "object", "properties": {key: {"type": t} for key, t in TYPES.items()}})
TAG, ON = {"x": "</tool_call>"}, {"on": True}
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="<"), max_size=9)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "a": st.integers(-99, 99),
    "b": st.floats(allow_nan=False, allow_infinity=False),
    "q": TEXT | st.sampled_from(["7", "null", '{"name": 1}', "a\n\nb", "<b>"]),
    "flags": st.lists(st.integers() | TEXT, max_size=3),
    "on": st.booleans(),
    "o": st.dictionaries(TEXT, TEXT, max_size=2),
}
ARGUMENTS = st.fixed_dictionaries({}, optional=VALUES)
CALLS = st.lists(st.tuples(st.sampled_from(["use", "other tool"]), ARGUMENTS), max_size=3)


def test_every_form_has_both_directions():
    for name in ("hermes", "tags", "xml"):
        assert name in registry.names("call_forms")
    for name in registry.names("call_forms"):
        form = registry.find("call_forms", name)
        assert form.read(form.write("words", ())).content == "words"


@pytest.mark.run
@settings(max_examples=100)
@given(TEXT, CALLS)
def test_hermes_reads_what_it_writes(content, calls):
    result = hermes.read(hermes.write(content, calls))
    assert (result.content, list(result.calls), result.unread) == (content, calls, None)


@settings(max_examples=100)
@given(TEXT, st.lists(st.tuples(st.just("use"), ARGUMENTS), max_size=3))
def test_xml_reads_what_it_writes(content, calls):
    result = xml.read(xml.write(content, calls, [TOOL]), [TOOL])
    assert (result.content, list(result.calls), result.unread) == (content, calls, None)
    assert [list(map(type, a.values())) for _, a in result.calls] == [list(map(type, a.values())) for _, a in calls]


@pytest.mark.parametrize(
    ("form", "text", "content", "calls"),
    [
        (hermes, 'So\n<tool_call>\n{"name": "f", "arguments": {"x": "</tool_call>"}}\n</tool_call>', "So", TAG),
        (hermes, '<tool_call>{"name": "f"}</tool_call> done ', "done", {}),
        (xml, "<tool_call><function=f></function></tool_call>", "", {}),
        (xml, "a\n\n<tool_call><function=use>\n<parameter=on>\nTrue\n</parameter></function></tool_call>", "a\n", ON),
        (xml, "<tool_call><function=use><parameter=a>x</parameter></function></tool_call>", "", {"a": "x"}),
    ],
)  # fmt: skip
def test_what_is_read(form, text, content, calls):
    result = form.read(text, [TOOL])
    assert (result.content, [a for _, a in result.calls]) == (content, [] if calls is None else [calls])
    assert result.unread is None


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
        (xml, "<tool_call><function=f><parameter=a>1</function></tool_call>", "<parameter=a> has no </parameter>"),
        (xml, "<tool_call><function=f>2</function></tool_call>", "there is '2</function>"),
        (xml, "<tool_call><function=f></function>", "and there is '</function>'"),
    ],
)
def test_what_cannot_be_read_is_answered_with_the_reason(form, text, reason):
    result = form.read(text, [TOOL])
    assert (result.content, tuple(result.calls)) == (text, ())
    assert reason in result.unread


@pytest.mark.parametrize(
    ("form", "content", "calls"),
    [
        (hermes, "<tool_call>", []),
        (xml, "", [("f", {"x": "</parameter>"})]),
    ],
)
def test_what_a_form_cannot_write_is_refused(form, content, calls):
    with pytest.raises(DataError):
        form.write(content, calls)
