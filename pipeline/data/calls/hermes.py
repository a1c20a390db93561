"""Calls as JSON in tags: `<tool_call>{"name": "add", "arguments": {"a": 27, "b": 58}}</tool_call>`.

Source: the chat templates of Qwen 2.5 and Qwen 3.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from verizero.pipeline.data.calls.base import CLOSE, MARKS, OPEN, Unread, call_of, decoded, read_marked
from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.environments.conversing import FoundCalls
from verizero.pipeline.errors import DataError


def read(text: str, tools: Sequence[ToolSchema] = ()) -> FoundCalls:
    """Return the calls in the text, and as words the text before, between and after them."""

    def read_call(at: int) -> tuple[str, Mapping[str, Any], int]:
        value, end = decoded(text, at)
        if not text.startswith(CLOSE, end):
            raise Unread(f"{CLOSE} is missing behind the JSON, and there is {text[end : end + 20]!r}")
        return (*call_of(value, ("arguments",)), end + len(CLOSE))

    return read_marked(text, read_call)


def write(content: str, calls: Sequence[tuple[str, Mapping[str, Any]]], tools: Sequence[ToolSchema] = ()) -> str:
    """Return the content and the calls, a line of each tag. Raises: DataError for content that has such tags."""
    if any(mark in content for mark in MARKS):
        raise DataError(f"the words {content!r:.60} hold the tags of calls; give calls as calls")
    written = [
        f'{OPEN}\n{{"name": {json.dumps(name, ensure_ascii=False)}, '
        f'"arguments": {json.dumps(dict(arguments), ensure_ascii=False)}}}\n{CLOSE}'
        for name, arguments in calls
    ]
    return "\n".join([*([content] if content or not calls else []), *written])
