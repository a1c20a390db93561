"""The API `POST responses`. A later request may continue from an answer by its id."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.environments.gateway import api
from verizero.pipeline.environments.gateway.api import Answer, Body, Event, TurnRequest
from verizero.pipeline.environments.gateway.chat import CREATED, error
from verizero.pipeline.service import Refused
from verizero.pipeline.types import Call, Message

__all__ = ["error", "events", "read", "write"]

READ = (*api.READ, "input", "instructions", "text", "previous_response_id")
DECIDED = (
    *api.DECIDED,
    "max_output_tokens",
)
HARMLESS = (*api.HARMLESS, "user", "store", "parallel_tool_calls", "reasoning", "truncation", "include")
TEXTS = ("input_text", "output_text", "text")


def read(body: Body) -> TurnRequest:
    """Return the request. The gateway adds the messages that `previous_response_id` stands for.

    Raises: Refused naming the field that is wrong or not supported.
    """
    decided = api.sampling_options(body, READ, DECIDED, HARMLESS)
    api.id_in(body, "previous_response_id", "the request")
    text = api.object_in(body.get("text") or {}, "text")
    if api.object_in(text.get("format") or {"type": "text"}, "text.format").get("type") != "text":
        raise Refused(400, "text.format is not supported here; leave it out")
    items = body.get("input")
    entries = [{"role": "user", "content": items}] if isinstance(items, str) else api.list_in(body, "input")
    messages: list[Message] = []
    if instructions := api.text_in(body.get("instructions"), "instructions", TEXTS):
        messages.append(Message("system", instructions))
    for i, entry in enumerate(entries):
        _add(messages, api.object_in(entry, f"input[{i}]"), f"input[{i}]")
    if not messages:
        raise Refused(400, "input is empty; give at least one message")
    return api.request_of(body, decided, messages, _tool)


def write(request: TurnRequest, answer: Answer) -> dict[str, Any]:
    """Return the answer as one JSON object."""
    usage = {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": answer.sampled_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.prompt_tokens + answer.sampled_tokens,
    }
    done = {"status": "incomplete" if answer.was_cut else "completed", "output": _items(answer), "usage": usage}
    return _envelope(request, answer) | done


def events(request: TurnRequest, answer: Answer) -> Iterator[Event]:
    """Yield the answer as events of a stream."""
    number = 0

    def event(kind: str, **fields: Any) -> Event:
        nonlocal number
        number += 1
        return kind, {"type": kind, "sequence_number": number - 1} | fields

    yield event("response.created", response=_envelope(request, answer))
    for i, item in enumerate(_items(answer)):
        index = {"output_index": i, "item_id": item["id"]}
        if item["type"] == "message":
            (part,) = item["content"]
            yield event(
                "response.output_item.added", output_index=i, item=item | {"content": [], "status": "in_progress"}
            )
            yield event("response.content_part.added", **index, content_index=0, part=part | {"text": ""})
            yield event("response.output_text.delta", **index, content_index=0, delta=part["text"], logprobs=[])
            yield event("response.output_text.done", **index, content_index=0, text=part["text"], logprobs=[])
            yield event("response.content_part.done", **index, content_index=0, part=part)
        else:
            begun = item | {"arguments": "", "status": "in_progress"}
            yield event("response.output_item.added", output_index=i, item=begun)
            yield event("response.function_call_arguments.delta", **index, delta=item["arguments"])
            yield event(
                "response.function_call_arguments.done", **index, arguments=item["arguments"], name=item["name"]
            )
        yield event("response.output_item.done", output_index=i, item=item)
    kind = "response.incomplete" if answer.was_cut else "response.completed"
    yield event(kind, response=write(request, answer))


def _add(messages: list[Message], item: Body, where: str) -> None:
    """Add an item of the input to the messages; a call is added to the assistant's message before it."""
    kind = item.get("type", "message")
    if kind == "reasoning":  # the policy's own thinking, which it does not read again
        return
    if kind == "function_call":
        arguments = api.arguments_in(item.get("arguments"), f"{where}.arguments")
        call = Call(str(api.id_in(item, "call_id", where)), api.name_in(item, "name", where), arguments)
        last = messages[-1] if messages and messages[-1].role == "assistant" else None
        if last is not None:
            messages.pop()
        messages.append(Message("assistant", last.content if last else "", (*(last.calls if last else ()), call)))
        return
    if kind == "function_call_output":
        output = api.text_in(item.get("output"), f"{where}.output", TEXTS)
        messages.append(Message("tool", output, answers=str(api.id_in(item, "call_id", where))))
        return
    role = {"developer": "system"}.get(str(item.get("role")), item.get("role"))
    if kind != "message" or role not in ("system", "user", "assistant"):
        raise Refused(400, f"{where} is a {kind!r} of role {role!r}; use messages, function_call and their outputs")
    messages.append(Message(role, api.text_in(item.get("content"), f"{where}.content", TEXTS)))  # type: ignore[arg-type]


def _tool(value: Any) -> ToolSchema:
    tool = api.object_in(value, "a tool")
    if tool.get("type") != "function":
        raise Refused(400, f"a tool of type {tool.get('type')!r} is not supported here; use functions")
    return api.tool_in(tool)


def _items(answer: Answer) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    status = "incomplete" if answer.was_cut else "completed"
    if answer.message.content or not answer.message.calls:
        part = {"type": "output_text", "text": answer.message.content, "annotations": [], "logprobs": []}
        items.append(
            {"type": "message", "id": f"msg_{answer.id}", "role": "assistant", "status": status, "content": [part]}
        )
    for i, call in enumerate(answer.message.calls):
        fields = {"id": f"fc_{answer.id}_{i}", "call_id": call.id, "name": call.name, "arguments": api.json_of(call)}
        items.append({"type": "function_call", "status": status} | fields)
    return items


def _envelope(request: TurnRequest, answer: Answer) -> dict[str, Any]:
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": CREATED,
        "model": request.model,
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
