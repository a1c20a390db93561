"""Environments and tools by name, by path and from installed packages; their parameters; what is refused."""

from __future__ import annotations

import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from verizero.pipeline import registry
from verizero.pipeline.environments import guess
from verizero.pipeline.environments.base import is_deterministic, load
from verizero.pipeline.environments.tools.base import load as load_tools
from verizero.pipeline.errors import ConfigError, UnknownName
from verizero.pipeline.types import Message, Prompt

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
def folder(tmp_path: Path) -> Path:
    (tmp_path / "games.py").write_text(GAMES)
    return tmp_path


def test_every_shipped_environment_loads_and_has_defaults() -> None:
    shipped = registry.names("environments")
    assert {"calculator", "files", "guess", "repair", "retry", "sql", "tool_use"} <= set(shipped)
    assert not {"as_json", "base", "conversing", "far", "hosts"} & set(shipped)
    needed = {
        "tool_use": {"tools": ["calculator"]},
        "agent": {"command": ["true"]},
        "openenv": {"url": "http://localhost:1"},
        "textarena": {"game": "Nim-v0"},
        "verifiers_package": {"python": sys.executable, "package": "some"},
    }
    for name in shipped:
        load(name).bind(needed.get(name, {}))
    for name in registry.names("tools"):
        load_tools(name).bind()


def test_by_name() -> None:
    made = load("guess").bind({"high": 9, "tries": 2}).make(PROMPT, 1, 2)
    assert isinstance(made, guess.Guess)
    assert (made.params.high, made.params.tries, made.number) == (9, 2, 7)


def test_by_path_with_parameters_and_seeds(folder: Path) -> None:
    environment = load(path="games.py:echo", base=folder).bind({"shout": True}, folder).make(PROMPT, 3, 4)
    assert environment.values[1:] == (PROMPT, 3, 4)
    assert environment.step(Message("assistant", "hi")).messages[0].content == "HI"
    assert not is_deterministic(environment)
    assert is_deterministic(load("guess").bind().make(PROMPT, 1, 2))


def test_relative_paths_of_parameters_start_from_the_recipe(folder: Path) -> None:
    plugin = load(path="games.py:echo", base=folder)
    with pytest.raises(ConfigError, match="no folder"):
        plugin.bind({"folder": "inner"}, folder)
    (folder / "inner").mkdir()
    plugin.bind({"folder": "inner"}, folder)


def test_from_an_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("other_guess", "verizero.pipeline.environments.guess:environment", "verizero.environments")
    monkeypatch.setattr(registry, "_installed", lambda kind, path: (entry,) if kind == "environments" else ())
    assert isinstance(load("other_guess").bind().make(PROMPT, 1, 2), guess.Guess)


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({}, "needs either a name or a path"),
        ({"name": "guess", "path": "x.py:y"}, "needs either a name or a path"),
        ({"name": "gues"}, "did you mean guess?"),
        ({"name": "far"}, "no environment is called 'far'"),
        ({"path": "none.py:echo"}, "expected 'file.py:function'"),
        ({"path": "games.py"}, "expected 'file.py:function'"),
        ({"path": "games.py:nothing"}, "expected a function whose first parameter is its EnvironmentParams"),
        ({"path": "games.py:untyped"}, "annotate its first parameter"),
        ({"path": "games.py:counting"}, "annotate its first parameter with a subclass of EnvironmentParams"),
    ],
)
def test_a_wrong_choice_says_what_to_do(folder: Path, choice: dict, words: str) -> None:
    with pytest.raises((ConfigError, UnknownName), match=re.escape(words)):
        load(**choice, base=folder)


@pytest.mark.parametrize(
    ("params", "words"),
    [({"trys": 2}, "no parameter 'trys'; did you mean tries?"), ({"tries": 0}, "tries = 0"), ({"low": 40}, "40 > 32")],
)
def test_wrong_parameters_are_refused(params: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=r"^environment 'guess': .*" + re.escape(words)):
        load("guess").bind(params)


def test_tools_by_path_are_functions_of_parameters_or_single_tools(folder: Path) -> None:
    counting = load_tools(path="games.py:counting", base=folder).bind({"step": 5}).make(PROMPT)
    assert counting.tools["count"](1) == 6
    assert load_tools(path="games.py:twice", base=folder).bind().make(PROMPT).tools["twice"](4) == 8
    with pytest.raises(ConfigError, match="no parameter 'step'"):
        load_tools(path="games.py:twice", base=folder).bind({"step": 1})


def test_tool_use_joins_tools_and_takes_paths_from_the_recipes_folder(folder: Path) -> None:
    tools = ["calculator", {"path": "games.py:counting", "params": {"step": 2}}]
    environment = load("tool_use").bind({"tools": tools}, folder).make(PROMPT, 1, 2)
    assert [t.name for t in environment.start().tools] == ["calc", "count"]
    with pytest.raises(ConfigError, match="no parameter 'stepp'; did you mean step"):
        load("tool_use").bind({"tools": [{"path": "games.py:counting", "params": {"stepp": 2}}]}, folder)
    with pytest.raises(ConfigError, match="did you mean calculator"):
        load("tool_use").bind({"tools": ["calculatr"]})
    with pytest.raises(ConfigError, match="two tools are called 'calc'"):
        load("tool_use").bind({"tools": ["calculator", "calculator"]}).make(PROMPT, 1, 2)
