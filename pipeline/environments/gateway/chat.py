"""Chat completions: requests, answers, and the fields of `POST chat/completions`, whose errors name the field."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, StrictBool
from pydantic_core import from_json

from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.host.service import Refused, checked
from verizero.pipeline.types import Call, Message

Body = Mapping[str, Any]
READ = ("model", "messages", "tools", "tool_choice", "stream", "stream_options", "stop", "n", "response_format")
DECIDED = ("temperature", "top_p", "seed", "max_tokens", "max_completion_tokens")
HARMLESS = (*("metadata", "service_tier", "user", "store", "parallel_tool_calls", "reasoning_effort", "verbosity"),)
"""Fields that are read, those that the recipe decides, and those that change nothing here."""
UNWISHED = ("presence_penalty", "frequency_penalty", "logit_bias", "logprobs")
"""Options that may be sent as 0, false or empty, and are refused otherwise."""
CREATED = 0
"""The time in an answer, in seconds since 1970: always the same, so that equal episodes have equal bytes."""
MAX_ENTRIES = 10_000
"""The most entries of a list: messages, tools, parts, texts to stop at."""
OTHER_ROLES = {"developer": "system", "function": "tool"}


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """A request for the policy's next turn."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()
    stream: bool = False
    with_usage: bool = False
    """The last event of a stream has the numbers of tokens."""
    stop: tuple[str, ...] = ()
    """The answer is cut before the first of these texts."""
    decided: tuple[str, ...] = ()
    """Names of the sampling options in the request, e.g. temperature, which the recipe decides."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a request: the message that the agent gets, and its size."""

    id: str
    message: Message
    prompt_tokens: int
    sampled_tokens: int
    was_cut: bool


def _text_in(content: Any) -> Any:
    """Return the text of a message's content: a string, null, or a list of parts, of which none may be an image."""
    if not isinstance(content, list):
        return "" if content is None else content
    for i, part in enumerate(_few(content)):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in ("text", "refusal") or not isinstance(part.get("text"), str):
            raise ValueError(f"part {i} is of type {kind!r}; only text is supported")
    return "".join(part["text"] for part in content)


def _arguments_in(value: Any) -> Any:
    """Return the arguments of a call, which are an object, JSON of one, or "" for none."""
    if value == "" or value is None:
        return {}
    return from_json(value.encode("utf-8", "surrogatepass"), allow_inf_nan=False) if isinstance(value, str) else value


def _few(value: Any) -> Any:
    if isinstance(value, list) and len(value) > MAX_ENTRIES:
        raise Refused(413, f"a list may have {MAX_ENTRIES:,} entries, got {len(value):,}")
    return () if value is None else value


def _of_type(value: Any) -> Any:
    return value.get("type") if isinstance(value, Mapping) else value


Name = Annotated[str, Field(min_length=1)]


class _Function(BaseModel):
    name: Name
    arguments: Annotated[dict[str, Any], BeforeValidator(_arguments_in)] = {}
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Named(BaseModel):
    """A call, or a tool."""

    id: str | None = None
    function: _Function


class _Message(BaseModel):
    role: Annotated[
        Literal["system", "user", "assistant", "tool"],
        BeforeValidator(lambda role: OTHER_ROLES.get(role, role) if isinstance(role, str) else role),
    ]
    content: Annotated[str, BeforeValidator(_text_in)] = ""
    tool_calls: Annotated[tuple[_Named, ...], BeforeValidator(_few)] = ()
    tool_call_id: str | None = None
    name: str | None = None

    def message(self) -> Message:
        if self.role == "tool":
            return Message("tool", self.content, answers=self.tool_call_id, name=self.name)
        if self.role != "assistant":
            return Message(self.role, self.content)
        calls = (Call(str(call.id), call.function.name, call.function.arguments) for call in self.tool_calls)
        return Message("assistant", self.content, tuple(calls))


class _StreamOptions(BaseModel):
    include_usage: StrictBool | None = None


class _Request(BaseModel):
    """The fields of a request that are read."""

    model: Name
    messages: Annotated[tuple[_Message, ...], BeforeValidator(_few)] = ()
    tools: Annotated[tuple[_Named, ...], BeforeValidator(_few)] = ()
    tool_choice: Annotated[Literal["auto", "none"], BeforeValidator(_of_type)] = "auto"
    response_format: Annotated[Literal["text"], BeforeValidator(_of_type)] = "text"
    stream: StrictBool = False
    stream_options: _StreamOptions = _StreamOptions()
    stop: Annotated[
        tuple[Name, ...],
        BeforeValidator(lambda stop: (stop,) if isinstance(stop, str) else stop),
        BeforeValidator(_few),
    ] = ()


def read(body: Body) -> TurnRequest:
    """Return the request. Raises: Refused naming the field that is wrong or not supported.

    An option that is silently ignored would mislead, so fields that are not known are refused.
    """
    fields = {name: value for name, value in body.items() if value is not None}
    odd = sorted(fields.keys() - {*READ, *DECIDED, *HARMLESS, *UNWISHED})
    if odd:
        raise Refused(400, f"{odd[0]} is not supported here; leave it out")
    for name in UNWISHED:
        if fields.get(name):
            raise Refused(400, f"{name}={fields[name]} is not supported here; leave it out")
    if fields.get("n", 1) != 1:
        raise Refused(400, f"n={fields['n']} is not supported here; ask once for each answer")
    request = checked(_Request, fields)
    if not request.messages:
        raise Refused(400, "messages is empty; give at least one")
    return TurnRequest(
        model=request.model,
        messages=tuple(m.message() for m in request.messages),
        tools=() if request.tool_choice == "none" else tuple(_tool(tool.function) for tool in request.tools),
        stream=request.stream,
        with_usage=bool(request.stream_options.include_usage),
        stop=request.stop,
        decided=tuple(name for name in DECIDED if name in fields),
    )


def _tool(function: _Function) -> ToolSchema:
    parameters = {"type": "object", "properties": {}} if function.parameters is None else function.parameters
    return ToolSchema(function.name, function.description or "", parameters)


def cut_at(text: str, stops: Sequence[str]) -> str:
    """Return the text before the first of `stops`, as the API defines it."""
    found_at = [position for stop in stops if (position := text.find(stop)) >= 0]
    return text[: min(found_at)] if found_at else text


def write(request: TurnRequest, answer: Answer) -> dict[str, Any]:
    """Return the answer as one JSON object."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.message.content or None, "refusal": None}
    if answer.message.calls:
        message["tool_calls"] = [_call(c) for c in answer.message.calls]
    elif message["content"] is None:
        message["content"] = ""
    choice = {"index": 0, "message": message, "finish_reason": _reason(answer), "logprobs": None}
    return _envelope(request, answer, "chat.completion") | {"choices": [choice], "usage": _usage(answer)}


def events(request: TurnRequest, answer: Answer) -> Iterator[Any]:
    """Yield the data of a stream's events."""
    envelope = _envelope(request, answer, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
        return envelope | {"choices": [choice]}

    yield chunk({"role": "assistant", "content": ""})
    if answer.message.content:
        yield chunk({"content": answer.message.content})
    for i, call in enumerate(answer.message.calls):
        yield chunk({"tool_calls": [{"index": i} | _call(call)]})
    yield chunk({}, _reason(answer))
    if request.with_usage:
        yield envelope | {"choices": [], "usage": _usage(answer)}
    yield "[DONE]"


def error(refused: Refused) -> dict[str, Any]:
    """Return an error in the form of this API."""
    kind = "invalid_request_error" if refused.status < 500 else "server_error"
    return {"error": {"message": str(refused), "type": kind, "param": None, "code": None}}


def _call(call: Call) -> dict[str, Any]:
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False)  # equal arguments in equal order give equal text
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _reason(answer: Answer) -> str:
    return "length" if answer.was_cut else "tool_calls" if answer.message.calls else "stop"


def _envelope(request: TurnRequest, answer: Answer, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.id}", "object": kind, "created": CREATED, "model": request.model}


def _usage(answer: Answer) -> dict[str, Any]:
    total = answer.prompt_tokens + answer.sampled_tokens
    return {"prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.sampled_tokens, "total_tokens": total}
