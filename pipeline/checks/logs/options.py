"""Read the options of a trainer's script, configuration or command, without running it."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from verizero.pipeline.checks.logs.logged import Logged, flat

CONFIG_CLASS = re.compile(r"\w*Config$|TrainingArguments$")
SUFFIXES = (".py", ".yaml", ".yml", ".sh")


def settings_of_file(path: Path, logged: Logged) -> dict[str, Any]:
    """Return option -> value: a Python script's arguments of its configuration, the options of a command or of a YAML.

    A file that cannot be read as what its name says has none, and is named in `logged`.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            return _arguments_in(text)
        if path.suffix == ".sh":
            return _options_of(shlex.split(text.replace("\\\n", " "), comments=True))
        tree = yaml.safe_load(text)
    except (OSError, SyntaxError, ValueError, MemoryError, RecursionError, yaml.YAMLError) as exc:
        logged.skipped.append(f"{path}, whose options are then not known ({' '.join(str(exc).split())}); correct it")
        return {}
    if isinstance(tree, list):  # Hydra's overrides
        return _options_of([str(item) for item in tree])
    return {k: v for k, v in flat(tree).items() if not str(v).startswith("${")} if isinstance(tree, dict) else {}


def _options_of(words: Sequence[str]) -> dict[str, Any]:
    """Return the options of a command: a.b=value of Hydra, also with + before it, and --name value of a parser."""
    options: dict[str, Any] = {}
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--") and len(word) > 2:
            name, sign, value = word[2:].partition("=")
            options[name] = _value_of(value if sign else "true" if following.startswith("--") else following)
        else:
            name, sign, value = word.lstrip("+").partition("=")
            if sign and re.fullmatch(r"[A-Za-z_][\w.]*", name):
                options[name] = _value_of(value)
    return options


def _value_of(text: str) -> Any:
    """Return the value of a text in YAML; the text if it is none."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text


def _arguments_in(text: str) -> dict[str, Any]:
    """Return the arguments of calls of configuration classes in a Python script, as far as they are constants.

    A name that the script sets once, to a constant, counts as that constant.
    """
    tree = ast.parse(text)
    names: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            names[name] = None if name in names else _constant(node.value, {})
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and CONFIG_CLASS.match(getattr(node.func, "attr", getattr(node.func, "id", ""))):
            for word in node.keywords:
                if word.arg is not None and (value := _constant(word.value, names)) is not None:
                    arguments[word.arg] = value
    return arguments


def _constant(node: ast.expr, names: dict[str, Any]) -> Any:
    """Return a constant's value; None if the expression is no constant."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
