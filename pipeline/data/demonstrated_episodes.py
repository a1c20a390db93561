"""Read demonstrated episodes from rows, and turn them into the tokens of a policy that says the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from verizero.pipeline.data.conversations import as_message, in_order_of_calls
from verizero.pipeline.data.policy_text import call_id
from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.environments.conversing import Conversing
from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Call, Message, Prompt

Ids = tuple[int, ...]
Spans = tuple[tuple[int, int], ...]
KEYS = frozenset({"role", "content", "calls", "thinking"})
ROLES = ("assistant", "user", "tool")


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
    return [_item(message) for message in demonstration]


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


def _item(message: Message) -> dict[str, Any]:
    calls = [{"name": c.name, "arguments": dict(c.arguments)} for c in message.calls]
    item = {"role": message.role, "content": message.content, "calls": calls, "thinking": message.thinking}
    return {key: value for key, value in item.items() if value or key in ("role", "content")}
