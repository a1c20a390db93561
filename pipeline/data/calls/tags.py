"""Calls as short tags, for models that are made here: `<add 27 58>`.

The words after the tool's name are its arguments, in the order of its schema's properties. Numbers, booleans, lists and
objects are JSON. A text is one word, or JSON in quotation marks; the text of the last property goes to the end of the
tag, spaces included. Only a word that names a tool begins a call, and without tools there are none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from verizero.pipeline.data.calls.base import Unread, properties_of, type_of, value_at
from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.environments.conversing import FoundCalls
from verizero.pipeline.errors import DataError
from verizero.pipeline.near import did_you_mean

NAME = re.compile(r"[A-Za-z_][\w.-]*\Z")
LAST_TAG = re.compile(r"<([A-Za-z_][\w.-]*)\s[^<>]*>\s*\Z")
"""A tag with arguments at the end of a text: a call, even where no tool has its name."""
NUMBERS: dict[str, type] = {"integer": int, "number": float}


def read(text: str, tools: Sequence[ToolSchema] = ()) -> FoundCalls:
    """Return the calls in the text, which are tags that name one of the tools."""
    if not tools:
        return FoundCalls(text)
    schemas = {tool.name: tool for tool in tools}
    names = "|".join(re.escape(name) for name in sorted(schemas, key=lambda n: (-len(n), n)))
    opening = re.compile(rf"<({names})(?=[\s>])")
    content, calls, at = "", [], 0
    while (match := opening.search(text, at)) is not None:
        try:
            arguments, end = _arguments(text, match.end(), schemas[match[1]])
        except Unread as exc:
            return FoundCalls(text, unread=f"the call <{match[1]} ...> cannot be read: {exc}")
        content += text[at : match.start()]
        calls.append((match[1], arguments))
        at = end
    content += text[at:]
    last = LAST_TAG.search(content)
    if last is not None and last[1] not in schemas:
        hint = did_you_mean(last[1], schemas, f"tools: {', '.join(schemas)}", most=1)
        return FoundCalls(text, unread=f"there is no tool {last[1]}; {hint}")
    return FoundCalls(content, tuple(calls))


def write(content: str, calls: Sequence[tuple[str, Mapping[str, Any]]], tools: Sequence[ToolSchema] = ()) -> str:
    """Return the content followed by the calls.

    The arguments must be in the order of the tool's properties. Without `tools`, the only argument of a call is taken
    for the last property of its tool. Raises: DataError for a name or arguments that a tag cannot hold.
    """
    schemas = {tool.name: tool for tool in tools}
    return content + "".join(_tag(name, arguments, schemas.get(name)) for name, arguments in calls)


def _tag(name: str, arguments: Mapping[str, Any], tool: ToolSchema | None) -> str:
    if not NAME.match(name):
        raise DataError(f"a tag cannot name the tool {name!r}; use letters, digits, '_', '.' and '-', a letter first")
    properties = list(properties_of(tool)) if tool is not None else list(arguments)
    if list(arguments) != properties[: len(arguments)]:
        raise DataError(
            f"the arguments of <{name}> must be in the order of its properties, {', '.join(properties)}, none left out "
            f"before another; got {', '.join(arguments)}"
        )
    words = []
    for place, (key, value) in enumerate(arguments.items()):
        is_last = place == len(properties) - 1
        takes_rest = is_last and (len(arguments) == 1 if tool is None else _takes_rest(tool, key))
        words.append(_word(value, takes_rest))
    return f"<{' '.join([name, *words])}>"


def _word(value: Any, takes_rest: bool) -> str:
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    plain = bool(value) and ">" not in value and value[0] not in '"[{'
    plain = plain and (value == value.strip() if takes_rest else not re.search(r"\s", value))
    return value if plain else json.dumps(value, ensure_ascii=False)


def _takes_rest(tool: ToolSchema, key: str) -> bool:
    properties = properties_of(tool)
    return key == list(properties)[-1] and type_of(properties[key]) == "string"


def _arguments(text: str, at: int, tool: ToolSchema) -> tuple[dict[str, Any], int]:
    """Return the arguments that begin at a place, and the place behind the tag's end. Raises: Unread."""
    properties = properties_of(tool)
    arguments: dict[str, Any] = {}
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        if at == len(text):
            raise Unread("it has no '>' at its end")
        if text[at] == ">":
            return arguments, at + 1
        if len(arguments) == len(properties):
            names = f" ({', '.join(properties)})" if properties else ""
            raise Unread(f"{tool.name} takes {len(properties)} arguments{names}, and here are more")
        key = list(properties)[len(arguments)]
        value, at = _value(text, at, properties[key], _takes_rest(tool, key))
        arguments[key] = value


def _value(text: str, at: int, schema: Mapping[str, Any], takes_rest: bool) -> tuple[Any, int]:
    """Return the argument that begins at a place, and the place behind it. Raises: Unread."""
    wanted = type_of(schema)
    if text[at] == '"' or (text[at] in "[{" and wanted != "string"):
        value, end = value_at(text, at)
        if end == len(text) or text[end] == ">" or text[end].isspace():
            return value, end
        raise Unread(f"a space is missing after {text[at:end]}")
    end = text.find(">", at) if takes_rest else next((i for i in range(at, len(text)) if text[i] in "> \t\n\r"), -1)
    if end < 0:
        raise Unread("it has no '>' at its end")
    word = text[at:end].rstrip() if takes_rest else text[at:end]
    return (word if wanted == "string" else _number(word, wanted)), end


def _number(word: str, wanted: Any) -> Any:
    """Return the number, truth value or null that a word is; the word itself where it is none of the wanted type."""
    try:
        value, end = value_at(word, 0)
    except Unread:
        return word
    if end < len(word):
        return word
    if wanted in NUMBERS and (isinstance(value, bool) or not isinstance(value, int | float)):
        return word
    return word if wanted == "integer" and not isinstance(value, int) else value
