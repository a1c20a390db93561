"""The API `POST chat/completions`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.environments.gateway import api
from verizero.pipeline.environments.gateway.api import Answer, Body, Event, TurnRequest
from verizero.pipeline.service import Refused
from verizero.pipeline.types import Call, Message

READ = (*api.READ, "messages", "stream_options", "stop", "n", "response_format")
DECIDED = (*api.DECIDED, "seed", "max_tokens", "max_completion_tokens")
HARMLESS = (*api.HARMLESS, "user", "store", "parallel_tool_calls", "reasoning_effort", "verbosity")
PENALTIES = ("presence_penalty", "frequency_penalty")
"""Options that may be sent as 0, and are refused otherwise."""
CREATED = 0
"""The time in an answer, in seconds since 1970: always the same, so that equal episodes have equal bytes."""


def read(body: Body) -> TurnRequest:
    """Return the request. Raises: Refused naming the field that is wrong or not supported."""
    decided = api.sampling_options(body, (*READ, *PENALTIES), DECIDED, HARMLESS)
    for name in PENALTIES:
        if body.get(name):
            raise Refused(400, f"{name}={body[name]} is not supported here; leave it out")
    if body.get("n") not in (None, 1):
        raise Refused(400, f"n={body['n']} is not supported here; ask once for each answer")
    form = body.get("response_format")
    if form is not None and api.object_in(form, "response_format").get("type") != "text":
        raise Refused(400, "response_format is not supported here; leave it out")
    messages = [_message(m, f"messages[{i}]") for i, m in enumerate(api.list_in(body, "messages"))]
    if not messages:
        raise Refused(400, "messages is empty; give at least one")
    options = api.object_in(body.get("stream_options") or {}, "stream_options")
    more = {"with_usage": api.flag_in(options, "include_usage"), "stop": api.stops_in(body, "stop")}
    return api.request_of(body, decided, messages, _tool, **more)


def write(request: TurnRequest, answer: Answer) -> dict[str, Any]:
    """Return the answer as one JSON object."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.message.content or None, "refusal": None}
    if answer.message.calls:
        message["tool_calls"] = [_call(c) for c in answer.message.calls]
    elif message["content"] is None:
        message["content"] = ""
    choice = {"index": 0, "message": message, "finish_reason": _reason(answer), "logprobs": None}
    return _envelope(request, answer, "chat.completion") | {"choices": [choice], "usage": _usage(answer)}


def events(request: TurnRequest, answer: Answer) -> Iterator[Event]:
    """Yield the answer as events of a stream."""
    envelope = _envelope(request, answer, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], reason: str | None = None) -> Event:
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
        return None, envelope | {"choices": [choice]}

    yield chunk({"role": "assistant", "content": ""})
    if answer.message.content:
        yield chunk({"content": answer.message.content})
    for i, call in enumerate(answer.message.calls):
        yield chunk({"tool_calls": [{"index": i} | _call(call)]})
    yield chunk({}, _reason(answer))
    if request.with_usage:
        yield None, envelope | {"choices": [], "usage": _usage(answer)}
    yield None, "[DONE]"


def error(refused: Refused) -> dict[str, Any]:
    """Return an error in the form of this API."""
    kind = "invalid_request_error" if refused.status < 500 else "server_error"
    return {"error": {"message": str(refused), "type": kind, "param": None, "code": None}}


def _message(value: Any, where: str) -> Message:
    message = api.object_in(value, where)
    role = {"developer": "system", "function": "tool"}.get(str(message.get("role")), message.get("role"))
    content = api.text_in(message.get("content"), f"{where}.content", ("text", "refusal"))
    if role in ("system", "user"):
        return Message(role, content)  # type: ignore[arg-type]
    if role == "tool":
        return Message(
            "tool", content, answers=api.id_in(message, "tool_call_id", where), name=api.id_in(message, "name", where)
        )
    if role != "assistant":
        raise Refused(400, f"{where}.role is {role!r}; use system, user, assistant or tool")
    calls = []
    for i, entry in enumerate(api.list_in(message, "tool_calls")):
        field = f"{where}.tool_calls[{i}]"
        call = api.object_in(entry, field)
        function = api.object_in(call.get("function"), f"{field}.function")
        arguments = api.arguments_in(function.get("arguments"), f"{field}.function.arguments")
        calls.append(
            Call(str(api.id_in(call, "id", field)), api.name_in(function, "name", f"{field}.function"), arguments)
        )
    return Message("assistant", content, tuple(calls))


def _tool(value: Any) -> ToolSchema:
    return api.tool_in(api.object_in(value, "a tool").get("function"))


def _call(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": api.json_of(call)}}


def _reason(answer: Answer) -> str:
    return "length" if answer.was_cut else "tool_calls" if answer.message.calls else "stop"


def _envelope(request: TurnRequest, answer: Answer, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.id}", "object": kind, "created": CREATED, "model": request.model}


def _usage(answer: Answer) -> dict[str, Any]:
    total = answer.prompt_tokens + answer.sampled_tokens
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.sampled_tokens,
        "total_tokens": total,
    }
