"""Conversations of rows: OpenAI's messages with calls of tools, and ShareGPT's turns; demonstrated episodes as tokens.

Both forms become the messages that `demonstration_of` reads: {role, content, calls, thinking}.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

from verizero.pipeline.data.policy_text import call_id
from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.environments.conversing import Conversing
from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Call, Message, Prompt

Ids = tuple[int, ...]
Spans = tuple[tuple[int, int], ...]
KEYS = frozenset({"role", "content", "calls", "thinking"})
ROLES = ("assistant", "user", "tool")
OTHER_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "function_call": "assistant",
    "developer": "system",
    "observation": "tool",
    "function": "tool",
}
"""Other names of roles."""
RENAMED = {"from": "role", "value": "content", "tool_calls": "calls", "reasoning_content": "thinking"}
UNUSED = frozenset({"tool_call_id", "name", "id", "refusal", "audio", "annotations"})
"""Keys of OpenAI's messages that say nothing to a policy. A tool's message is placed by its id before."""


def as_message(item: Any) -> Any:
    """Return a message in this project's form; what is none, as it is. Raises: DataError for an unreadable call."""
    if not isinstance(item, Mapping) or not {"role", "from"} & set(item):
        return item
    made = {RENAMED.get(key, key): value for key, value in item.items() if value is not None and key not in UNUSED}
    name, content = made.get("role"), made.get("content", "")
    made["role"] = OTHER_ROLES.get(str(name), name)
    if name == "function_call":  # ShareGPT writes the call as a text
        return {"role": "assistant", "content": "", "calls": [_plain_call(content)]}
    made["content"] = "" if content == [] else text_of(content) if isinstance(content, str | list) else content
    calls = _calls(made.get("calls")) or [c for c in (made.pop("function_call", None),) if c]  # OpenAI's older form
    return {**made, "calls": [_plain_call(call) for call in calls]} if calls else made


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
    is_text = len(rest) == 1 and rest[0].keys() <= {"role", "content"} and str(rest[0]["content"]).strip()
    return system, question, str(rest[0]["content"]) if is_text else rest


def in_order_of_calls(messages: Sequence[Any]) -> list[Any]:
    """Return the messages with neighbouring answers of tools in the order of the calls that they name by id."""
    calls = [call for m in messages if isinstance(m, Mapping) for call in _calls(m.get("tool_calls"))]
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
    """Return a row's tools, in OpenAI's form or not, as {name, description, parameters}. Raises: DataError."""
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


def _calls(value: Any) -> list[Any]:
    calls = _parsed(value or [], "the calls of a message")
    if not isinstance(calls, list):
        raise DataError(f"the calls of a message must be a list, got {calls!r:.80}")
    return calls


def _plain_call(call: Any) -> Any:
    """Return {name, arguments} of OpenAI's {id, type, function: {name, arguments as JSON}}; other calls as they are."""
    call = _parsed(call, "a call")
    inner = call.get("function", call) if isinstance(call, Mapping) else call
    if isinstance(inner, Mapping) and isinstance(inner.get("arguments"), str):
        return {**inner, "arguments": _parsed(inner["arguments"] or "{}", f"the arguments of {inner.get('name')}")}
    return inner


def _parsed(value: Any, what: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as exc:
        raise DataError(f"{what} must be an object or JSON ({exc}), got {value!r:.80}") from exc


def demonstration_of(value: Any) -> str | tuple[Message, ...]:
    """Return a row's demonstration: a text, or the messages of an episode that follow the question.

    The messages are {role, content, calls, thinking}, of which calls, {name, arguments}, and thinking are optional and
    the assistant's; or have a form of `conversations.py`. The first and the last message are the assistant's, and
    others are between two of those.
    Raises: DataError naming the message.
    """
    if not isinstance(value, list):
        return str(value)
    messages: list[Message] = []
    pending: list[Call] = []
    for number, item in enumerate(map(as_message, in_order_of_calls(value)), 1):
        message = _message(item, f"message {number} of the demonstration", sum(m.role == "assistant" for m in messages))
        if message.role == "assistant":
            if not message.content.strip() and not message.calls and message.thinking is None:
                raise DataError(f"message {number} of the demonstration is the assistant's, with no text and no call")
            pending = list(message.calls)
        elif message.role == "tool" and pending:
            call = pending.pop(0)
            message = replace(message, answers=call.id, name=call.name)
        messages.append(message)
    roles = [m.role for m in messages]
    if roles[0] != "assistant" or roles[-1] != "assistant":
        raise DataError(f"a demonstration begins and ends with an assistant's message, got {', '.join(roles)}")
    if any(a == b == "assistant" for a, b in pairwise(roles)):
        raise DataError(f"two messages of the assistant follow each other in the demonstration, got {', '.join(roles)}")
    return tuple(messages)


def as_value(demonstration: str | tuple[Message, ...] | None) -> Any:
    """Return the demonstration as a value for a row; `demonstration_of` reads it."""
    if not isinstance(demonstration, tuple):
        return demonstration
    return [as_item(message) for message in demonstration]


def episode_rows(talk: Conversing, prompt: Prompt, tools: Sequence[ToolSchema] = ()) -> list[tuple[Ids, Spans]]:
    """Return the rows of the prompt's demonstrated episode: the tokens of each, and its spans that are imitated.

    There is one row, unless the template rewrites the history. `tools` are those that the episode's environment shows;
    a chat template writes them in the prompt.
    Raises: DataError naming the prompt if the policy cannot say a message, or its call could not be read.
    """
    assert isinstance(prompt.demonstration, tuple)
    history = list(talk.opening(prompt, ()))
    ids, spans = talk.begin(prompt, (), tools), Spans()
    rows: list[tuple[Ids, Spans]] = []
    sampled: list[Ids] = []
    for message, new in _turns(prompt.demonstration):
        words = _words(talk, prompt, message, tools, len(sampled))
        spans += ((len(ids), len(ids) + len(words)),)
        ids += words
        sampled.append(words)
        history.append(message)
        if not new:
            break
        following = talk.extend(history, new, tools, sampled, "stop")
        if following.fork is not None:
            rows.append((ids, spans))
            ids, spans = (), ()
        ids += tuple(token for piece in following.pieces for token in piece.ids)
        history += new
    return [*rows, (ids, spans)]


def _turns(messages: Sequence[Message]) -> list[tuple[Message, list[Message]]]:
    """Return each message of the assistant with those that follow it."""
    turns: list[tuple[Message, list[Message]]] = []
    for message in messages:
        if message.role == "assistant":
            turns.append((message, []))
        else:
            turns[-1][1].append(message)
    return turns


def _words(talk: Conversing, prompt: Prompt, message: Message, tools: Sequence[ToolSchema], turn: int) -> Ids:
    try:
        words = talk.write(message, tools)
    except DataError as exc:
        raise DataError(f"turn {turn + 1} of the demonstration of prompt {prompt.id!r}: {exc}") from exc
    unread = talk.read(words, "stop", turn, tools).unread
    if unread is not None:
        raise DataError(f"turn {turn + 1} of the demonstration of prompt {prompt.id!r} would not be read: {unread}")
    return words


def _message(item: Any, where: str, turn: int) -> Message:
    if not isinstance(item, Mapping) or item.get("role") not in ROLES or not isinstance(item.get("content", ""), str):
        raise DataError(f"{where} must be {{role, content}} with a role of {', '.join(ROLES)}, got {item!r:.80}")
    odd = sorted(set(map(str, item)) - KEYS)
    if odd:
        raise DataError(f"{where} has keys {', '.join(odd)}; known are {', '.join(sorted(KEYS))}")
    calls, thinking, role = item.get("calls") or [], item.get("thinking"), item["role"]
    if (calls or thinking is not None) and role != "assistant":
        raise DataError(f"{where} has calls or thinking, which only the assistant's have, and its role is {role}")
    if thinking is not None and not isinstance(thinking, str):
        raise DataError(f"{where}: thinking must be text, got {thinking!r:.40}")
    made = tuple(_call(call, where, call_id(turn, n)) for n, call in enumerate(calls))
    return Message(role, item.get("content", ""), made, thinking=thinking)


def _call(call: Any, where: str, name: str) -> Call:
    if not isinstance(call, Mapping) or not isinstance(call.get("name"), str) or set(call) - {"name", "arguments"}:
        raise DataError(f"a call in {where} must be {{name, arguments}}, got {call!r:.80}")
    arguments = call.get("arguments", {})
    if not isinstance(arguments, Mapping):
        raise DataError(f"the arguments of {call['name']} in {where} must be an object, got {arguments!r:.60}")
    return Call(name, call["name"], dict(arguments))


def as_item(message: Message) -> dict[str, Any]:
    """Return the message as a row's demonstration holds it."""
    calls = [{"name": c.name, "arguments": dict(c.arguments)} for c in message.calls]
    item = {"role": message.role, "content": message.content, "calls": calls, "thinking": message.thinking}
    return {key: value for key, value in item.items() if value or key in ("role", "content")}
