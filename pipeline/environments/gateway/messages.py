"""The wire `POST messages`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.environments.gateway import wire
from verizero.pipeline.environments.gateway.wire import Answer, Asked, Body, Event
from verizero.pipeline.service import Refused
from verizero.pipeline.types import Call, Message

READ = (*wire.READ, "messages", "system", "stop_sequences")
DECIDED = (*wire.DECIDED, "top_k", "max_tokens")
HARMLESS = (
    *wire.HARMLESS,
    "thinking",
)
HIDDEN = ("thinking", "redacted_thinking")
"""Parts of an assistant's message that the policy does not read again."""


def read(body: Body) -> Asked:
    """Return the request. Raises: Refused naming the field that is wrong or not supported."""
    decided = wire.known_only(body, READ, DECIDED, HARMLESS)
    system = wire.text_in(body.get("system"), "system", ("text",))
    messages = [Message("system", system)] if system else []
    for i, value in enumerate(wire.list_in(body, "messages")):
        messages += _messages(wire.object_in(value, f"messages[{i}]"), f"messages[{i}]")
    if not any(m.role != "system" for m in messages):
        raise Refused(400, "messages is empty; give at least one")
    return wire.turn_request(body, decided, messages, _tool, stop=wire.stops_in(body, "stop_sequences"))


def write_count(num_tokens: int) -> dict[str, Any]:
    """Return the answer to a request for the size of its prompt."""
    return {"input_tokens": num_tokens}


def write(asked: Asked, answer: Answer) -> dict[str, Any]:
    """Return the answer as one JSON object."""
    usage = {"input_tokens": answer.prompt_tokens, "output_tokens": answer.sampled_tokens}
    return _envelope(asked, answer) | {"content": _parts(answer), "stop_reason": _reason(answer), "usage": usage}


def events(asked: Asked, answer: Answer) -> Iterator[Event]:
    """Yield the answer as events of a stream."""
    begun = _envelope(asked, answer) | {"usage": {"input_tokens": answer.prompt_tokens, "output_tokens": 0}}
    yield "message_start", {"type": "message_start", "message": begun}
    for i, part in enumerate(_parts(answer)):
        if part["type"] == "text":
            empty, delta = part | {"text": ""}, {"type": "text_delta", "text": part["text"]}
        else:
            # The arguments come as a text of JSON.
            call = answer.message.calls[i - bool(answer.message.content)]
            empty, delta = part | {"input": {}}, {"type": "input_json_delta", "partial_json": wire.json_of(call)}
        yield "content_block_start", {"type": "content_block_start", "index": i, "content_block": empty}
        yield "content_block_delta", {"type": "content_block_delta", "index": i, "delta": delta}
        yield "content_block_stop", {"type": "content_block_stop", "index": i}
    end = {"stop_reason": _reason(answer), "stop_sequence": None}
    usage = {"output_tokens": answer.sampled_tokens}
    yield "message_delta", {"type": "message_delta", "delta": end, "usage": usage}
    yield "message_stop", {"type": "message_stop"}


def error(refused: Refused) -> dict[str, Any]:
    """Return the wire's form of an error."""
    kinds = {401: "authentication_error", 404: "not_found_error"}
    kind = kinds.get(refused.status, "invalid_request_error" if refused.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": str(refused)}}


def _messages(message: Body, where: str) -> list[Message]:
    """Return a message of the wire: results of tools come first in it, each a message of its own here."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise Refused(400, f"{where}.role is {role!r}; use user or assistant")
    if content is None or isinstance(content, str):
        return [Message(role, content or "")]
    parts = [wire.object_in(p, f"{where}.content") for p in wire.list_in(message, "content")]
    plain = [p for p in parts if p.get("type") not in ("tool_use", "tool_result", *HIDDEN)]
    text = wire.text_in(plain, f"{where}.content", ("text",))
    if role == "assistant":
        calls = tuple(
            Call(
                str(wire.id_in(p, "id", f"{where}.tool_use")),
                wire.name_in(p, "name", f"{where}.tool_use"),
                wire.arguments_in(p.get("input"), f"{where}.input"),
            )
            for p in parts
            if p.get("type") == "tool_use"
        )
        return [Message(role, text, calls)]
    results = [
        Message(
            "tool",
            wire.text_in(p.get("content"), f"{where}.tool_result", ("text",)),
            answers=str(wire.id_in(p, "tool_use_id", f"{where}.tool_result")),
        )
        for p in parts
        if p.get("type") == "tool_result"
    ]
    return [*results, *([Message(role, text)] if text or not results else [])]


def _tool(value: Any) -> ToolSchema:
    return wire.tool_in(value, "input_schema")


def _parts(answer: Answer) -> list[dict[str, Any]]:
    calls = answer.message.calls
    parts: list[dict[str, Any]] = []
    if answer.message.content or not calls:
        parts.append({"type": "text", "text": answer.message.content})
    return parts + [{"type": "tool_use", "id": c.id, "name": c.name, "input": dict(c.arguments)} for c in calls]


def _reason(answer: Answer) -> str:
    return "max_tokens" if answer.was_cut else "tool_use" if answer.message.calls else "end_turn"


def _envelope(asked: Asked, answer: Answer) -> dict[str, Any]:
    return {
        "id": f"msg_{answer.id}",
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }
