"""Read the options of a trainer's script or configuration without running it."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from verizero.pipeline.diagnosis.logs import verl
from verizero.pipeline.diagnosis.logs.logged import flat
from verizero.pipeline.errors import RunError

CONFIG_CLASS = re.compile(r"\w*Config$|TrainingArguments$")


def settings_of_file(path: Path) -> dict[str, Any]:
    """Return option -> value: of a Python script the arguments of its configuration, of a shell script its overrides.

    Raises: RunError if the file cannot be read as what its name says.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            return arguments_in(text)
        if path.suffix == ".toml":
            return flat(tomllib.loads(text))
        if path.suffix == ".sh":
            return words_of(shlex.split(text.replace("\\\n", " "), comments=True))
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError) as exc:
        raise RunError(f"{path} cannot be read ({exc}); correct it, or leave it out") from exc
    return verl.settings_of(path)


def words_of(words: list[str]) -> dict[str, Any]:
    """Return the options of a command: a.b=value of Hydra, and --name value of a parser."""
    arguments = verl.overrides(words)
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--") and len(word) > 2:
            name, sign, value = word[2:].partition("=")
            arguments[name] = verl.value_of(value if sign else "true" if following.startswith("--") else following)
    return arguments


def arguments_in(text: str) -> dict[str, Any]:
    """Return the arguments of calls of configuration classes in a Python script, as far as they are constants.

    A name that the script sets once, to a constant, counts as that constant.
    """
    tree = ast.parse(text)
    names: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            value = _constant(node.value, {})
            names[node.targets[0].id] = None if node.targets[0].id in names else value
    return {
        word.arg: value
        for word in _keywords(tree)
        if word.arg is not None and (value := _constant(word.value, names)) is not None
    }


def line_of(path: Path, option: str) -> int:
    """Return the line of a script or configuration that gives an option; 1 if it is not found."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return next((word.value.lineno for word in _keywords(ast.parse(text)) if word.arg == option), 1)
    lines = text.splitlines()
    for name in (option, option.rpartition(".")[2]):
        pattern = re.compile(rf"(?<!\w){re.escape(name)}[\s\"']*[=:\s]")
        numbers = [n for n, line in enumerate(lines, 1) if pattern.search(line)]
        if numbers:
            return numbers[0]
    return 1


def _keywords(tree: ast.AST) -> Iterator[ast.keyword]:
    """Yield the arguments with a name in calls of configuration classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and CONFIG_CLASS.match(_name(node.func)):
            yield from node.keywords


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _constant(node: ast.expr, names: dict[str, Any]) -> Any:
    """Return a constant's value; None if the expression is no constant."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
