"""Calls as nested tags, one for each argument:

    <tool_call>
    <function=add>
    <parameter=a>
    27
    </parameter>
    </function>
    </tool_call>

Texts are written as they are, everything else as JSON; the tool's schema tells which of the two an argument is.
Source: the chat templates of Qwen 3.5 and Nemotron 3.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from verizero.pipeline.data.calls.base import (
    CLOSE,
    MARKS,
    OPEN,
    Unread,
    decoded,
    properties_of,
    read_marked,
    type_of,
)
from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.environments.conversing import FoundCalls
from verizero.pipeline.errors import DataError

FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>\s*")
PARAMETER = re.compile(r"<parameter=([^<>\n]+)>")
END = "</parameter>"
FUNCTION_END = re.compile(rf"</function>\s*{CLOSE}")
PYTHON = {"True": True, "False": False, "None": None}
"""Templates write these values of arguments as Python does, so models do too."""


def read(text: str, tools: Sequence[ToolSchema] = ()) -> FoundCalls:
    """Return the calls in the text. The words are what comes before the first, and behind any of them."""
    schemas = {tool.name: properties_of(tool) for tool in tools}
    return read_marked(text, lambda at: _call(text, at, schemas))


def write(content: str, calls: Sequence[tuple[str, Mapping[str, Any]]], tools: Sequence[ToolSchema] = ()) -> str:
    """Return the content and the calls. Raises: DataError for texts that hold the tags of calls."""
    texts = [content, *(v for _, arguments in calls for v in arguments.values() if isinstance(v, str))]
    for text in texts:
        if any(mark in text for mark in (*MARKS, END)):
            raise DataError(f"the text {text!r:.60} holds the tags of calls, which the form xml cannot write in a text")
    written = [_written(name, arguments) for name, arguments in calls]
    return "\n".join([*([content] if content or not calls else []), *written])


def _call(text: str, at: int, schemas: Mapping[str, Any]) -> tuple[str, dict[str, Any], int]:
    """Return the name and the arguments of the call that begins at a place, and the place behind it. Raises: Unread."""
    function = FUNCTION.match(text, at)
    if function is None:
        raise Unread(f"<function=NAME> must follow {OPEN}")
    at, properties, arguments = function.end(), schemas.get(function[1], {}), {}
    while (parameter := PARAMETER.match(text, at)) is not None:
        end = text.find(END, parameter.end())
        if end < 0:
            raise Unread(f"<parameter={parameter[1]}> has no {END}")
        value = text[parameter.end() : end].removeprefix("\n").removesuffix("\n")
        arguments[parameter[1]] = _value(value, properties.get(parameter[1], {}))
        at = end + len(END)
        at += len(text[at:]) - len(text[at:].lstrip())
    close = FUNCTION_END.match(text, at)
    if close is None:
        raise Unread(f"<parameter=NAME> or </function> and {CLOSE} must follow, and there is {text[at : at + 20]!r}")
    return function[1], arguments, close.end()


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """Return the value of an argument; its text, where it is one or cannot be read."""
    if schema.get("type") is None or type_of(schema) == "string":
        return text
    if text in PYTHON:
        return PYTHON[text]
    try:
        value, end = decoded(text, 0)
    except Unread:
        return text
    return value if end == len(text) else text


def _written(name: str, arguments: Mapping[str, Any]) -> str:
    values = {k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for k, v in arguments.items()}
    parameters = "".join(f"<parameter={k}>\n{v}\n{END}\n" for k, v in values.items())
    return f"{OPEN}\n<function={name}>\n{parameters}</function>\n{CLOSE}"
