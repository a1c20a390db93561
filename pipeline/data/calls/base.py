"""Code that several forms of calls share: read JSON after a mark, calls in marks, and the words around them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.environments.conversing import FoundCalls

OPEN, CLOSE = MARKS = ("<tool_call>", "</tool_call>")


class Unread(ValueError):
    """A call cannot be read; the text is the reason."""


def value_at(text: str, at: int) -> tuple[Any, int]:
    """Return the JSON value at index `at`, and the index after it. Raises: Unread.

    Numbers that are not finite and letters that no text can hold (halves of a pair) are refused: they would break the
    templates and tokenizers that write the call again.
    """
    try:
        value, end = DECODER.raw_decode(text, at)
        if "\\u" in text[at:end]:
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as exc:
        raise Unread(f"{exc.msg} at {text[exc.pos : exc.pos + 20]!r}") from exc
    except UnicodeEncodeError as exc:
        raise Unread("it has half of a pair of \\u letters") from exc
    except ValueError as exc:
        raise Unread(str(exc)) from exc
    except RecursionError as exc:
        raise Unread("its JSON is nested too deeply") from exc
    return value, end


def decoded(text: str, at: int) -> tuple[Any, int]:
    """Return the JSON value at index `at` or after spaces there, and the index after it and its spaces.

    Raises: Unread.
    """
    at = _behind_spaces(text, at)
    value, end = value_at(text, at)
    return value, _behind_spaces(text, end)


def call_of(value: Any, keys: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """Return a call's name and its arguments, under the first of `keys` that is there, else {}. Raises: Unread."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise Unread(f'it must be an object with "name", a text, and "{keys[0]}"')
    key = next((k for k in keys if k in value), keys[0])
    arguments = value.get(key, {})
    if not isinstance(arguments, dict):
        raise Unread(f'"{key}" must be an object, got {json.dumps(arguments):.40}')
    return value["name"], arguments


def properties_of(tool: ToolSchema) -> dict[str, Mapping[str, Any]]:
    """Return the schemas of a tool's arguments by name; {} for one that is no object, which others may have written."""
    properties = tool.parameters.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    return {str(name): schema if isinstance(schema, Mapping) else {} for name, schema in properties.items()}


def type_of(schema: Mapping[str, Any]) -> str | None:
    """Return the one type, besides null, that a schema names; None where it names none or several."""
    wanted = schema.get("type")
    names = [t for t in (wanted if isinstance(wanted, list | tuple) else [wanted]) if t != "null"]
    return names[0] if len(names) == 1 and isinstance(names[0], str) else None


def read_marked(text: str, read_call: Callable[[int], tuple[str, Mapping[str, Any], int]]) -> FoundCalls:
    """Return the calls between MARKS, and as words the text before, between and after them.

    `read_call(at)` returns the name and the arguments of the call that begins at a place, and the place behind it. The
    line that a call begins is no part of the words before it; spaces between calls are none either.
    """
    words, calls, at = [], [], 0
    try:
        while (start := text.find(OPEN, at)) >= 0:
            words.append(text[at:start])
            name, arguments, at = read_call(start + len(OPEN))
            calls.append((name, arguments))
        if CLOSE in text[at:]:
            raise Unread(f"{CLOSE} has no {OPEN}")
    except Unread as exc:
        return FoundCalls(text, unread=f"the call cannot be read: {exc}")
    if not calls:
        return FoundCalls(text)
    others = [part.strip() for part in (*words[1:], text[at:])]
    return FoundCalls("\n".join(filter(None, [words[0].removesuffix("\n"), *others])), tuple(calls))


def _behind_spaces(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _refused(constant: str) -> Any:
    raise Unread(f"{constant} is no number of JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise Unread(f"{digits} is too large")
    return number


DECODER = json.JSONDecoder(parse_constant=_refused, parse_float=_finite)
