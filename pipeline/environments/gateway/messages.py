"""The API `POST messages`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.environments.gateway import api
from verizero.pipeline.environments.gateway.api import Answer, Body, Event, TurnRequest
from verizero.pipeline.service import Refused
from verizero.pipeline.types import Call, Message

READ = (*api.READ, "messages", "system", "stop_sequences")
DECIDED = (*api.DECIDED, "top_k", "max_tokens")
HARMLESS = (
    *api.HARMLESS,
    "thinking",
)
HIDDEN = ("thinking", "redacted_thinking")
"""Parts of an assistant's message that are not shown to the policy again."""


def read(body: Body) -> TurnRequest:
    """Return the request. Raises: Refused naming the field that is wrong or not supported."""
    decided = api.sampling_options(body, READ, DECIDED, HARMLESS)
    system = api.text_in(body.get("system"), "system", ("text",))
    messages = [Message("system", system)] if system else []
    for i, value in enumerate(api.list_in(body, "messages")):
        messages += _messages(api.object_in(value, f"messages[{i}]"), f"messages[{i}]")
    if not any(m.role != "system" for m in messages):
        raise Refused(400, "messages is empty; give at least one")
    return api.request_of(body, decided, messages, _tool, stop=api.stops_in(body, "stop_sequences"))


def write_count(num_tokens: int) -> dict[str, Any]:
    """Return the answer to a request for the size of its prompt."""
    return {"input_tokens": num_tokens}


def write(request: TurnRequest, answer: Answer) -> dict[str, Any]:
    """Return the answer as one JSON object."""
    usage = {"input_tokens": answer.prompt_tokens, "output_tokens": answer.sampled_tokens}
    return _envelope(request, answer) | {"content": _parts(answer), "stop_reason": _reason(answer), "usage": usage}


def events(request: TurnRequest, answer: Answer) -> Iterator[Event]:
    """Yield the answer as events of a stream."""
    begun = _envelope(request, answer) | {"usage": {"input_tokens": answer.prompt_tokens, "output_tokens": 0}}
    yield "message_start", {"type": "message_start", "message": begun}
    for i, part in enumerate(_parts(answer)):
        if part["type"] == "text":
            empty, delta = part | {"text": ""}, {"type": "text_delta", "text": part["text"]}
        else:
            # The arguments come as a text of JSON.
            call = answer.message.calls[i - bool(answer.message.content)]
            empty, delta = part | {"input": {}}, {"type": "input_json_delta", "partial_json": api.json_of(call)}
        yield "content_block_start", {"type": "content_block_start", "index": i, "content_block": empty}
        yield "content_block_delta", {"type": "content_block_delta", "index": i, "delta": delta}
        yield "content_block_stop", {"type": "content_block_stop", "index": i}
    end = {"stop_reason": _reason(answer), "stop_sequence": None}
    usage = {"output_tokens": answer.sampled_tokens}
    yield "message_delta", {"type": "message_delta", "delta": end, "usage": usage}
    yield "message_stop", {"type": "message_stop"}


def error(refused: Refused) -> dict[str, Any]:
    """Return an error in the form of this API."""
    kinds = {401: "authentication_error", 404: "not_found_error"}
    kind = kinds.get(refused.status, "invalid_request_error" if refused.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": str(refused)}}


def _messages(message: Body, where: str) -> list[Message]:
    """Return a message of the request as messages of ours: results of tools come first, each as its own message."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise Refused(400, f"{where}.role is {role!r}; use user or assistant")
    if content is None or isinstance(content, str):
        return [Message(role, content or "")]
    parts = [api.object_in(p, f"{where}.content") for p in api.list_in(message, "content")]
    plain = [p for p in parts if p.get("type") not in ("tool_use", "tool_result", *HIDDEN)]
    text = api.text_in(plain, f"{where}.content", ("text",))
    if role == "assistant":
        calls = tuple(
            Call(
                str(api.id_in(p, "id", f"{where}.tool_use")),
                api.name_in(p, "name", f"{where}.tool_use"),
                api.arguments_in(p.get("input"), f"{where}.input"),
            )
            for p in parts
            if p.get("type") == "tool_use"
        )
        return [Message(role, text, calls)]
    results = [
        Message(
            "tool",
            api.text_in(p.get("content"), f"{where}.tool_result", ("text",)),
            answers=str(api.id_in(p, "tool_use_id", f"{where}.tool_result")),
        )
        for p in parts
        if p.get("type") == "tool_result"
    ]
    return [*results, *([Message(role, text)] if text or not results else [])]


def _tool(value: Any) -> ToolSchema:
    return api.tool_in(value, "input_schema")


def _parts(answer: Answer) -> list[dict[str, Any]]:
    calls = answer.message.calls
    parts: list[dict[str, Any]] = []
    if answer.message.content or not calls:
        parts.append({"type": "text", "text": answer.message.content})
    return parts + [{"type": "tool_use", "id": c.id, "name": c.name, "input": dict(c.arguments)} for c in calls]


def _reason(answer: Answer) -> str:
    return "max_tokens" if answer.was_cut else "tool_use" if answer.message.calls else "end_turn"


def _envelope(request: TurnRequest, answer: Answer) -> dict[str, Any]:
    return {
        "id": f"msg_{answer.id}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }
