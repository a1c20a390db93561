"""Schemas from annotations, arguments that are checked, and the line between a mistake and a broken host."""

from __future__ import annotations

from typing import Annotated, Literal

import jsonschema
import pytest
from pydantic import BaseModel, Field

from verizero.pipeline.environments.base import ToolUse
from verizero.pipeline.environments.tool_use import ToolEpisode
from verizero.pipeline.environments.tools.base import Tool, Toolbox, tool
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.types import Call, Message


class Point(BaseModel):
    """A place."""

    x: int
    title: str = "here"


@tool
def add(a: int, b: int = 1) -> int:
    """Return a + b.

    Both are integers.
    """
    return a + b


@tool
def paint(
    color: Literal["red", "blue"], points: list[Point], schema: str = "", copy: Annotated[float, Field(ge=0)] = 1.0
) -> dict:
    """Paint points."""
    return {"color": color, "sum": sum(p.x for p in points), "schema": schema, "copy": copy}


def raising(error: Exception, **options: object) -> Toolbox:
    """A toolbox whose only tool raises."""

    @tool(name="act", **options)
    def act() -> None:
        """Raise an error."""
        raise error

    return Toolbox([act])


def call(box: Toolbox, name: str, **arguments: object) -> tuple[str, ToolUse]:
    """The text that answers a call, and its count."""
    (message,), (use,) = box.answer(Message("assistant", "", (Call("3-0", name, arguments),)))
    assert (message.role, message.answers, message.name) == ("tool", "3-0", name)
    return message.content, use


def test_the_schema_is_that_of_the_annotations() -> None:
    assert add.schema.name == "add"
    assert add.schema.description == "Return a + b.\n\nBoth are integers."
    assert add.schema.parameters == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 1}},
        "required": ["a"],
        "additionalProperties": False,
    }


def test_the_schema_accepts_what_the_tool_accepts() -> None:
    good = {"color": "red", "points": [{"x": 1}, {"x": 2, "title": "t"}], "schema": "s", "copy": 0.5}
    jsonschema.validate(good, paint.schema.parameters)
    assert call(Toolbox([paint]), "paint", **good) == (
        '{"color": "red", "sum": 3, "schema": "s", "copy": 0.5}',
        ToolUse("paint"),
    )
    assert "title" in paint.schema.parameters["$defs"]["Point"]["properties"], "a property, not the words of pydantic"
    for change in ({"color": "green"}, {"points": [{}]}, {"copy": -1}, {"other": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**good, **change}, paint.schema.parameters)
        assert call(Toolbox([paint]), "paint", **{**good, **change})[1] == ToolUse("paint", wrong=True)


@pytest.mark.parametrize(
    ("arguments", "text", "wrong"),
    [
        ({"a": 2, "b": 3}, "5", False),
        ({"a": "27", "b": "58"}, "85", False),
        ({"a": 2}, "3", False),
        ({}, "a is missing", True),
        ({"a": "x", "b": 1}, "a is not an integer", True),
        ({"a": 1.5}, "a is not an integer", True),
        ({"a": 1, "bb": 1}, "add takes no bb. did you mean b?", True),
        ({"a": "{}", "b": []}, "a is not an integer. b is not an integer", True),
    ],
)
def test_arguments(arguments: dict, text: str, wrong: bool) -> None:
    assert call(Toolbox([add]), "add", **arguments) == (text, ToolUse("add", wrong))


def test_an_unknown_tool_is_answered_with_a_near_name_and_counted_under_no_name_of_its_own() -> None:
    assert call(Toolbox([add, paint]), "ad") == ("no tool is called ad. did you mean add?", ToolUse("unknown", True))
    assert call(Toolbox([add, paint]), "zzz")[0] == "no tool is called zzz. tools: add, paint"
    assert call(Toolbox([]), "zzz")[0] == "no tool is called zzz. tools: none"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("too old"), "too old"),
        (ZeroDivisionError("by zero"), "by zero"),
        (OverflowError(), "overflowerror"),
        (KeyError("k"), "k"),
        (IndexError("no place 7"), "no place 7"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "'utf-8' codec can't decode byte 0xff in position 0: bad"),
    ],
)
def test_mistakes_are_observations(error: Exception, text: str) -> None:
    assert call(raising(error), "act") == (text, ToolUse("act", wrong=True))


@pytest.mark.parametrize("error", [OSError("disk"), RuntimeError("x"), TypeError("x"), MemoryError(), AssertionError()])
def test_what_breaks_is_no_observation(error: Exception) -> None:
    with pytest.raises(type(error)):
        call(raising(error), "act")
    environment = ToolEpisode(raising(error))
    with pytest.raises(type(error)):
        environment.step(Message("assistant", "", (Call("0-0", "act", {}),)))


def test_a_tool_may_list_further_mistakes() -> None:
    assert call(raising(OSError("disk"), wrong=(OSError,)), "act") == ("disk", ToolUse("act", wrong=True))
    with pytest.raises(RuntimeError):
        call(raising(RuntimeError("x"), wrong=(OSError,)), "act")


def test_a_type_error_inside_is_not_taken_for_wrong_arguments() -> None:
    @tool
    def bad(a: int) -> int:
        """Fail."""
        return len(a)  # type: ignore[arg-type]

    with pytest.raises(TypeError):
        call(Toolbox([bad]), "bad", a=1)


def test_every_call_is_answered_in_order() -> None:
    calls = (Call("0-0", "add", {"a": 1}), Call("0-1", "nothing", {}), Call("0-2", "add", {"a": "x"}))
    messages, uses = Toolbox([add]).answer(Message("assistant", "", calls))
    assert [m.answers for m in messages] == ["0-0", "0-1", "0-2"]
    assert [u.wrong for u in uses] == [False, True, True]


@pytest.mark.parametrize(("value", "text"), [("a\n", "a\n"), (None, "done"), (True, "true"), ([1, "é"], '[1, "é"]')])
def test_results_are_text(value: object, text: str) -> None:
    @tool
    def get() -> object:
        """Return a value."""
        return value

    assert call(Toolbox([get]), "get")[0] == text


def test_functions_made_again_keep_what_they_close_over() -> None:
    def make(n: int, words: str) -> Tool:
        def give() -> int:
            return n

        give.__doc__ = words
        return Tool(give, "give")

    first, second = make(1, "First."), make(2, "Second.")
    assert (first.answer({}), second.answer({})) == ("1", "2")
    assert (first.schema.description, second.schema.description) == ("First.", "Second.")


def test_functions_made_again_have_defaults_of_their_own() -> None:
    def make(step: int) -> Tool:
        @tool
        def count(n: int = step) -> int:
            """Return n."""
            return n

        return count

    assert [make(step).answer({}) for step in (1, 2)] == ["1", "2"]
    assert make(3).schema.parameters["properties"]["n"]["default"] == 3


def test_what_is_no_tool_is_refused() -> None:
    def no_words(a: int) -> int:
        return a

    def no_type(a) -> int:  # type: ignore[no-untyped-def]
        """Return a."""
        return int(a)

    def many(*a: int) -> int:
        """Return a sum."""
        return sum(a)

    for function, words in ((no_words, "no docstring"), (no_type, "no annotation"), (many, "no fixed name")):
        with pytest.raises(ConfigError, match=words):
            tool(function)
    with pytest.raises(ConfigError, match="two tools are called 'add'"):
        Toolbox([add, add])


def test_all_is_closed_once_even_if_something_fails() -> None:
    closed: list[int] = []

    def bad() -> None:
        closed.append(1)
        raise OSError("stuck")

    box = Toolbox([], [bad, lambda: closed.append(2)])
    with pytest.raises(OSError, match="stuck"):
        box.close()
    box.close()
    assert closed == [1, 2]
