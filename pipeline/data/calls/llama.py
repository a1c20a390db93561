"""A call as bare JSON, one a turn and no words with it: `{"name": "add", "parameters": {"a": 27, "b": 58}}`.

Source: the chat templates of Llama 3.1 and 3.2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from verizero.pipeline.data.calls.base import Unread, call_of, decoded
from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.environments.conversing import FoundCalls
from verizero.pipeline.errors import DataError

MARK = "<|python_tag|>"
"""Some models write it before the object."""
MARKS = (MARK,)
KEYS = ("parameters", "arguments")


def read(text: str, tools: Sequence[ToolSchema] = ()) -> FoundCalls:
    """Return the call that the whole text is. An object without a name is an answer, not a call."""
    body = text.strip().removeprefix(MARK).lstrip()
    is_marked = text.strip().startswith(MARK)
    if not is_marked and not (body.startswith("{") and '"name"' in body):
        return FoundCalls(text)
    try:
        value, end = decoded(body, 0)
        if not is_marked and not (isinstance(value, dict) and "name" in value):
            return FoundCalls(text)
        if end < len(body):
            raise Unread(f"a turn has one call and nothing behind it, and there is {body[end : end + 20]!r}")
        return FoundCalls("", (call_of(value, KEYS),))
    except Unread as exc:
        return FoundCalls(text, unread=f"the call cannot be read: {exc}")


def write(content: str, calls: Sequence[tuple[str, Mapping[str, Any]]], tools: Sequence[ToolSchema] = ()) -> str:
    """Return the content, or the call. Raises: DataError for both, for two calls, and for content that reads as one."""
    if len(calls) > 1 or (calls and content):
        raise DataError(
            f"the form llama has one call a turn and no words with it, got {len(calls)} and {content!r:.60}"
        )
    if not calls:
        result = read(content)
        if result.calls or result.unread is not None:
            raise DataError(f"the words {content!r:.60} would be read as a call; give calls as calls")
        return content
    name, arguments = calls[0]
    parameters = json.dumps(dict(arguments), ensure_ascii=False)
    return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "parameters": {parameters}}}'
