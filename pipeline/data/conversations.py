"""Conversations in the forms of published data: OpenAI's messages with calls of tools, and ShareGPT's turns.

All become the messages that `demonstrated_episodes.py` reads: {role, content, calls, thinking}.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from verizero.pipeline.errors import DataError

ROLES = {
    "human": "user",
    "gpt": "assistant",
    "function_call": "assistant",
    "developer": "system",
    "observation": "tool",
    "function": "tool",
}
"""Other names of roles."""
RENAMED = {"from": "role", "value": "content", "tool_calls": "calls", "reasoning_content": "thinking"}
UNUSED = frozenset({"tool_call_id", "name", "id", "refusal", "audio", "annotations", "function_call"})
"""Keys of OpenAI's messages that say nothing to a policy. A tool's message is placed by its id before."""


def as_message(item: Any) -> Any:
    """Return a message in the form of this project; what is none is returned as it is, and the reader refuses it.

    Raises: DataError for a call that cannot be read.
    """
    if not isinstance(item, Mapping) or not {"role", "from"} & set(item):
        return item
    made = {RENAMED.get(key, key): value for key, value in item.items() if value is not None and key not in UNUSED}
    name, content = made.get("role"), made.get("content", "")
    made["role"] = ROLES.get(str(name), name)
    if name == "function_call":  # ShareGPT writes the call as a text
        return {"role": "assistant", "content": "", "calls": [_call(content)]}
    made["content"] = "" if content == [] else text_of(content) if isinstance(content, str | list) else content
    if made.get("calls"):
        made["calls"] = [_call(call) for call in made["calls"]]
    return made


def split_conversation(value: Any) -> tuple[str | None, str, str | list[Any]]:
    """Return the system message, if any, the question, and the messages that follow it; a single text as it is.

    Raises: DataError if it does not begin with one user's message, after a system message if any, and an answer.
    """
    if not isinstance(value, list) or not all(isinstance(m, Mapping) for m in value):
        raise DataError(f"a conversation must be a list of messages, got {value!r:.80}")
    messages = [as_message(m) for m in in_order_of_calls(value)]
    roles = [m.get("role") for m in messages]
    first = 1 if roles[:1] == ["system"] else 0
    if roles[first : first + 2] != ["user", "assistant"]:
        begins = ", ".join(map(str, roles[: first + 2]))
        raise DataError(
            "a conversation begins with one message of the user, after a system message if any, and the assistant's "
            f"answer; this one begins with {begins}"
        )
    question = str(messages[first]["content"])
    if not question.strip():
        raise DataError("the user's first message of the conversation is empty")
    system, rest = (str(messages[0]["content"]) if first else None), messages[first + 1 :]
    is_text = len(rest) == 1 and rest[0].keys() <= {"role", "content"}
    return system, question, str(rest[0]["content"]) if is_text else rest


def in_order_of_calls(messages: Sequence[Any]) -> list[Any]:
    """Return the messages with neighbouring answers of tools in the order of the calls that they name by id."""
    calls = [call for m in messages if isinstance(m, Mapping) for call in m.get("tool_calls") or ()]
    places = {call.get("id"): place for place, call in enumerate(calls) if isinstance(call, Mapping)}

    def place(message: Any) -> int | None:
        answered = message.get("tool_call_id") if isinstance(message, Mapping) else None
        return None if answered is None else places.get(answered)

    ordered: list[Any] = []
    for is_placed, neighbours in groupby(messages, key=lambda m: place(m) is not None):
        some = list(neighbours)
        ordered += sorted(some, key=lambda m: place(m) or 0) if is_placed else some
    return ordered


def question_of(value: Any) -> tuple[str | None, str]:
    """Return the system message, if any, and the question. A chat has at most one system and one user message.

    Raises: DataError for another chat.
    """
    if isinstance(value, str):
        return None, value
    if not isinstance(value, list) or not all(isinstance(m, Mapping) and {"role", "content"} <= set(m) for m in value):
        raise DataError(f"the question must be text or a list of {{role, content}}, got {value!r:.80}")
    roles = [m["role"] for m in value]
    if roles not in (["user"], ["system", "user"]):
        raise DataError(f"a chat question must be one user message, after a system message if any; got roles {roles}")
    texts = [text_of(m["content"]) for m in value]
    if not texts[-1].strip():
        raise DataError("the user message of the chat is empty")
    return (texts[0] if len(texts) == 2 else None), texts[-1]


def text_of(content: Any) -> str:
    """Return the content of a message, of one text or of several parts. Raises: DataError for other parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(p, Mapping) and p.get("type") == "text" for p in content):
        return "".join(str(p.get("text", "")) for p in content)
    raise DataError(f"message content must be text, got {content!r:.80}")


def tools_of_row(value: Any) -> tuple[Mapping[str, Any], ...]:
    """Return the tools of a row as {name, description, parameters}: OpenAI's form, or that inside; a list or JSON.

    Raises: DataError.
    """
    tools = _parsed(value, "the tools")
    if not isinstance(tools, list):
        raise DataError(f"the tools must be a list, got {value!r:.80}")
    made = []
    for tool in tools:
        inner = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
            raise DataError(f"a tool must be {{name, description, parameters}}, got {tool!r:.80}")
        parameters = _parsed(inner.get("parameters") or {}, f"the parameters of {inner['name']}")
        made.append({"name": inner["name"], "description": inner.get("description") or "", "parameters": parameters})
    return tuple(made)


def _call(call: Any) -> Any:
    """Return {name, arguments} of OpenAI's {id, type, function: {name, arguments as JSON}}; other calls as they are."""
    call = _parsed(call, "a call")
    inner = call.get("function", call) if isinstance(call, Mapping) else call
    if isinstance(inner, Mapping) and isinstance(inner.get("arguments"), str):
        return {**inner, "arguments": _parsed(inner["arguments"], f"the arguments of {inner.get('name')}")}
    return inner


def _parsed(value: Any, what: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as exc:
        raise DataError(f"{what} must be an object or JSON ({exc}), got {value!r:.80}") from exc
