"""The wire `POST responses`, with answers that a later request may name as its beginning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.environments.gateway import wire
from verizero.pipeline.environments.gateway.chat import CREATED, error
from verizero.pipeline.environments.gateway.wire import Answer, Asked, Body, Event
from verizero.pipeline.service import Refused
from verizero.pipeline.types import Call, Message

__all__ = ["error", "events", "read", "write"]

READ = (*wire.READ, "input", "instructions", "text", "previous_response_id")
DECIDED = (
    *wire.DECIDED,
    "max_output_tokens",
)
HARMLESS = (*wire.HARMLESS, "user", "store", "parallel_tool_calls", "reasoning", "truncation", "include")
TEXTS = ("input_text", "output_text", "text")


def read(body: Body) -> Asked:
    """Return the request, without what `previous_response_id` stands for: the gateway adds that.

    Raises: Refused naming the field that is wrong or not supported.
    """
    decided = wire.known_only(body, READ, DECIDED, HARMLESS)
    wire.id_in(body, "previous_response_id", "the request")
    text = wire.object_in(body.get("text") or {}, "text")
    if wire.object_in(text.get("format") or {"type": "text"}, "text.format").get("type") != "text":
        raise Refused(400, "text.format is not supported here; leave it out")
    items = body.get("input")
    entries = [{"role": "user", "content": items}] if isinstance(items, str) else wire.list_in(body, "input")
    messages: list[Message] = []
    if instructions := wire.text_in(body.get("instructions"), "instructions", TEXTS):
        messages.append(Message("system", instructions))
    for i, entry in enumerate(entries):
        _add(messages, wire.object_in(entry, f"input[{i}]"), f"input[{i}]")
    if not messages:
        raise Refused(400, "input is empty; give at least one message")
    return wire.turn_request(body, decided, messages, _tool)


def write(asked: Asked, answer: Answer) -> dict[str, Any]:
    """Return the answer as one JSON object."""
    usage = {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": answer.sampled_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.prompt_tokens + answer.sampled_tokens,
    }
    done = {"status": "incomplete" if answer.was_cut else "completed", "output": _items(answer), "usage": usage}
    return _envelope(asked, answer) | done


def events(asked: Asked, answer: Answer) -> Iterator[Event]:
    """Yield the answer as events of a stream."""
    number = 0

    def event(kind: str, **fields: Any) -> Event:
        nonlocal number
        number += 1
        return kind, {"type": kind, "sequence_number": number - 1} | fields

    yield event("response.created", response=_envelope(asked, answer))
    for i, item in enumerate(_items(answer)):
        at = {"output_index": i, "item_id": item["id"]}
        if item["type"] == "message":
            (part,) = item["content"]
            yield event(
                "response.output_item.added", output_index=i, item=item | {"content": [], "status": "in_progress"}
            )
            yield event("response.content_part.added", **at, content_index=0, part=part | {"text": ""})
            yield event("response.output_text.delta", **at, content_index=0, delta=part["text"], logprobs=[])
            yield event("response.output_text.done", **at, content_index=0, text=part["text"], logprobs=[])
            yield event("response.content_part.done", **at, content_index=0, part=part)
        else:
            begun = item | {"arguments": "", "status": "in_progress"}
            yield event("response.output_item.added", output_index=i, item=begun)
            yield event("response.function_call_arguments.delta", **at, delta=item["arguments"])
            yield event("response.function_call_arguments.done", **at, arguments=item["arguments"], name=item["name"])
        yield event("response.output_item.done", output_index=i, item=item)
    kind = "response.incomplete" if answer.was_cut else "response.completed"
    yield event(kind, response=write(asked, answer))


def _add(messages: list[Message], item: Body, where: str) -> None:
    """Add an item of the input; calls join the assistant's message before them."""
    kind = item.get("type", "message")
    if kind == "reasoning":  # the policy's own thinking, which it does not read again
        return
    if kind == "function_call":
        arguments = wire.arguments_in(item.get("arguments"), f"{where}.arguments")
        call = Call(str(wire.id_in(item, "call_id", where)), wire.name_in(item, "name", where), arguments)
        last = messages[-1] if messages and messages[-1].role == "assistant" else None
        if last is not None:
            messages.pop()
        messages.append(Message("assistant", last.content if last else "", (*(last.calls if last else ()), call)))
        return
    if kind == "function_call_output":
        output = wire.text_in(item.get("output"), f"{where}.output", TEXTS)
        messages.append(Message("tool", output, answers=str(wire.id_in(item, "call_id", where))))
        return
    role = {"developer": "system"}.get(str(item.get("role")), item.get("role"))
    if kind != "message" or role not in ("system", "user", "assistant"):
        raise Refused(400, f"{where} is a {kind!r} of role {role!r}; use messages, function_call and their outputs")
    messages.append(Message(role, wire.text_in(item.get("content"), f"{where}.content", TEXTS)))  # type: ignore[arg-type]


def _tool(value: Any) -> ToolSchema:
    tool = wire.object_in(value, "a tool")
    if tool.get("type") != "function":
        raise Refused(400, f"a tool of type {tool.get('type')!r} is not supported here; use functions")
    return wire.tool_in(tool)


def _items(answer: Answer) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    status = "incomplete" if answer.was_cut else "completed"
    if answer.message.content or not answer.message.calls:
        part = {"type": "output_text", "text": answer.message.content, "annotations": [], "logprobs": []}
        items.append(
            {"type": "message", "id": f"msg_{answer.id}", "role": "assistant", "status": status, "content": [part]}
        )
    for i, call in enumerate(answer.message.calls):
        own = {"id": f"fc_{answer.id}_{i}", "call_id": call.id, "name": call.name, "arguments": wire.json_of(call)}
        items.append({"type": "function_call", "status": status} | own)
    return items


def _envelope(asked: Asked, answer: Answer) -> dict[str, Any]:
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": CREATED,
        "model": asked.model,
        "status": "in_progress",
        "output": [],
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if answer.was_cut else None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
    }
