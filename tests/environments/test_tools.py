"""Environments and tools by name and by path, and the calls that tools answer."""

import re
import sys
from typing import Annotated, Literal

import jsonschema
import pytest
from pydantic import BaseModel, Field

from verizero.pipeline import registry
from verizero.pipeline.environments.base import ToolUse, is_deterministic, load
from verizero.pipeline.environments.tool_use import ToolEpisode
from verizero.pipeline.environments.tools.base import Tool, Toolbox, tool
from verizero.pipeline.environments.tools.base import load as load_tools
from verizero.pipeline.errors import ConfigError, UnknownName
from verizero.pipeline.types import Call, Message, Prompt


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


def test_the_schema_is_that_of_the_annotations():
    assert add.schema.name == "add"
    assert add.schema.description == "Return a + b.\n\nBoth are integers."
    assert add.schema.parameters == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 1}},
        "required": ["a"],
        "additionalProperties": False,
    }


def test_the_schema_accepts_what_the_tool_accepts():
    good = {"color": "red", "points": [{"x": 1}, {"x": 2, "title": "t"}], "schema": "s", "copy": 0.5}
    jsonschema.validate(good, paint.schema.parameters)
    assert call(Toolbox([paint]), "paint", **good) == (
        '{"color": "red", "sum": 3, "schema": "s", "copy": 0.5}',
        ToolUse("paint"),
    )
    assert '"schema": "5"' in call(Toolbox([paint]), "paint", **{**good, "schema": 5})[0], "a number for a text"
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
def test_arguments(arguments, text, wrong):
    assert call(Toolbox([add]), "add", **arguments) == (text, ToolUse("add", wrong))


def test_an_unknown_tool_is_answered_with_a_near_name_and_counted_under_no_name_of_its_own():
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
def test_mistakes_are_observations(error, text):
    assert call(raising(error), "act") == (text, ToolUse("act", wrong=True))


@pytest.mark.parametrize("error", [OSError("disk"), RuntimeError("x"), TypeError("x"), MemoryError(), AssertionError()])
def test_what_breaks_is_no_observation(error):
    with pytest.raises(type(error)):
        call(raising(error), "act")
    with pytest.raises(type(error)):
        ToolEpisode(raising(error)).step(Message("assistant", "", (Call("0-0", "act", {}),)))


@pytest.mark.parametrize(("value", "text"), [("a\n", "a\n"), (None, "done"), (True, "true"), ([1, "é"], '[1, "é"]')])
def test_results_are_text(value, text):
    @tool
    def get() -> object:
        """Return a value."""
        return value

    assert call(Toolbox([get]), "get")[0] == text


def test_functions_made_again_have_words_values_and_defaults_of_their_own():
    def make(n: int, words: str) -> Tool:
        def give(step: int = n) -> int:
            return n + step

        give.__doc__ = words
        return Tool(give, "give")

    first, second = make(1, "First."), make(2, "Second.")
    assert (first.answer({}), second.answer({})) == ("2", "4")
    assert (first.schema.description, second.schema.description) == ("First.", "Second.")
    assert [t.schema.parameters["properties"]["step"]["default"] for t in (first, second)] == [1, 2]


def test_what_is_no_tool_is_refused():
    def no_words(a: int) -> int:
        return a

    def no_type(a):
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


def test_all_is_closed_once_even_if_something_fails():
    closed = []

    def bad():
        closed.append(1)
        raise OSError("stuck")

    box = Toolbox([], [bad, lambda: closed.append(2)])
    with pytest.raises(OSError, match="stuck"):
        box.close()
    box.close()
    assert closed == [1, 2]


PROMPT = Prompt("p", "q", "environment", 7)
GAMES = """
from __future__ import annotations
from pydantic import ValidationInfo, model_validator
from verizero.pipeline.environments.base import EnvironmentParams, Reply, Start
from verizero.pipeline.environments.tools.base import ToolParams, Toolbox, tool
from verizero.pipeline.types import Message, Prompt

class EchoParams(EnvironmentParams):
    shout: bool = False
    folder: str = ""

    @model_validator(mode="after")
    def _there(self, info: ValidationInfo):
        if self.folder and not (info.context["base"] / self.folder).is_dir():
            raise ValueError("no folder")
        return self

class Echo:
    deterministic = False
    def __init__(self, *values): self.values = values
    def start(self): return Start()
    def step(self, message):
        text = message.content.upper() if self.values[0].shout else message.content
        return Reply((Message("user", text),))
    def close(self): pass

def echo(params: EchoParams, prompt: Prompt, task_seed: int, sample_seed: int):
    return Echo(params, prompt, task_seed, sample_seed)

def untyped(params, prompt, task_seed, sample_seed): ...

@tool
def twice(n: int) -> int:
    '''Return 2n.'''
    return 2 * n

class CountParams(ToolParams):
    step: int = 1

def counting(params: CountParams, prompt: Prompt) -> Toolbox:
    @tool
    def count(n: int) -> int:
        '''Return n and a step.'''
        return n + params.step
    return Toolbox([count])
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "games.py").write_text(GAMES)
    return tmp_path


def test_every_shipped_environment_loads_and_has_defaults():
    shipped = registry.names("environments")
    assert {"guess", "repair", "sql", "tool_use"} <= set(shipped)
    assert not {"base", "conversing"} & set(shipped)
    needed = {
        "tool_use": {"tools": ["sql"]},
        "agent": {"command": ["true"]},
        "openenv": {"url": "http://localhost:1"},
        "verifiers_package": {"python": sys.executable, "package": "some"},
    }
    for name in shipped:
        load(name).bind(needed.get(name, {}))
    for name in registry.names("tools"):
        load_tools(name).bind()


def test_by_path_with_parameters_and_seeds(folder):
    environment = load(path="games.py:echo", base=folder).bind({"shout": True}, folder).make(PROMPT, 3, 4)
    assert environment.values[1:] == (PROMPT, 3, 4)
    assert environment.step(Message("assistant", "hi")).messages[0].content == "HI"
    assert not is_deterministic(environment)
    assert is_deterministic(load("guess").bind().make(PROMPT, 1, 2))
    plugin = load(path="games.py:echo", base=folder)
    with pytest.raises(ConfigError, match="no folder"):
        plugin.bind({"folder": "inner"}, folder)
    (folder / "inner").mkdir()
    plugin.bind({"folder": "inner"}, folder)  # a path of parameters starts from the recipe's folder


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({}, "needs either a name or a path"),
        ({"name": "guess", "path": "x.py:y"}, "needs either a name or a path"),
        ({"name": "gues"}, "did you mean guess?"),
        ({"name": "far"}, "no environment is called 'far'"),
        ({"path": "none.py:echo"}, "expected 'file.py:function'"),
        ({"path": "games.py"}, "expected 'file.py:function'"),
        ({"path": "games.py:nothing"}, "has no 'nothing'; did you mean counting?"),
        ({"path": "games.py:untyped"}, "annotate its first parameter"),
        ({"path": "games.py:counting"}, "annotate its first parameter with a subclass of EnvironmentParams"),
    ],
)
def test_a_wrong_choice_says_what_to_do(folder, choice, words):
    with pytest.raises((ConfigError, UnknownName), match=re.escape(words)):
        load(**choice, base=folder)


@pytest.mark.parametrize(
    ("params", "words"),
    [({"trys": 2}, "no parameter 'trys'; did you mean tries?"), ({"tries": 0}, "tries = 0"), ({"low": 40}, "40 > 32")],
)
def test_wrong_parameters_are_refused(params, words):
    with pytest.raises(ConfigError, match=r"^environment 'guess': .*" + re.escape(words)):
        load("guess").bind(params)


def test_tools_by_path_are_functions_of_parameters_or_single_tools(folder):
    counting = load_tools(path="games.py:counting", base=folder).bind({"step": 5}).make(PROMPT)
    assert counting.tools["count"](1) == 6
    assert load_tools(path="games.py:twice", base=folder).bind().make(PROMPT).tools["twice"](4) == 8
    with pytest.raises(ConfigError, match="no parameter 'step'"):
        load_tools(path="games.py:twice", base=folder).bind({"step": 1})


def test_tool_use_joins_tools_and_takes_paths_from_the_recipes_folder(folder):
    tools = ["python", {"path": "games.py:counting", "params": {"step": 2}}]
    environment = load("tool_use").bind({"tools": tools}, folder).make(PROMPT, 1, 2)
    assert [t.name for t in environment.start().tools] == ["python", "count"]
    with pytest.raises(ConfigError, match="no parameter 'stepp'; did you mean step"):
        load("tool_use").bind({"tools": [{"path": "games.py:counting", "params": {"stepp": 2}}]}, folder)
    with pytest.raises(ConfigError, match="did you mean python"):
        load("tool_use").bind({"tools": ["pythn"]})
    with pytest.raises(ConfigError, match="two tools are called 'python'"):
        load("tool_use").bind({"tools": ["python", "python"]}).make(PROMPT, 1, 2)
