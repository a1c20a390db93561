"""The parts that the three APIs share: requests, answers, and checks of fields whose errors name the field.

Each API is a module with the functions `read`, `write`, `events` and `error`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field
from pydantic_core import from_json

from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.service import Refused, checked
from verizero.pipeline.types import Call, Message

Body = Mapping[str, Any]
Event = tuple[str | None, Any]
"""A server-sent event: (its name, if the API names events; its data)."""


READ = ("model", "tools", "tool_choice", "stream")
DECIDED = ("temperature", "top_p")
HARMLESS = ("metadata", "service_tier")
"""Fields of every API: those that are read, those that the recipe decides, and those that change nothing here."""
MIN_TEMPERATURE = 1e-3
"""Smaller ones above 0 would make logits infinite."""


def _not_nearly_0(value: float) -> float:
    if 0 < value < MIN_TEMPERATURE:
        raise ValueError(f"must be 0 (greedy) or at least {MIN_TEMPERATURE:g}")
    return value


Limit = Annotated[int, Field(ge=1, lt=2**31)]


class SamplingOptions(BaseModel):
    """The sampling options of a request, with their ranges."""

    temperature: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False), AfterValidator(_not_nearly_0)] | None = None
    top_p: float | None = Field(None, ge=1e-6, le=1, allow_inf_nan=False)
    top_k: int | None = Field(None, ge=0, lt=2**31)
    seed: int | None = Field(None, ge=-(2**62), le=2**62)
    max_tokens: Limit | None = None
    max_completion_tokens: Limit | None = None
    max_output_tokens: Limit | None = None


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """A request for the policy's next turn.

    Example: TurnRequest(model="policy", messages=(Message("user", "hello"),))
    """

    model: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()
    stream: bool = False
    with_usage: bool = False
    """The last event of a stream has the numbers of tokens."""
    stop: tuple[str, ...] = ()
    """The answer is cut before the first of these texts."""
    decided: Mapping[str, Any] = field(default_factory=dict)
    """Sampling options, e.g. temperature: a served model follows them; in training the recipe decides."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a request: the message that the agent gets, and its size.

    Example: Answer("c-0", Message("assistant", "hi"), prompt_tokens=5, sampled_tokens=2, was_cut=False)
    """

    id: str
    message: Message
    prompt_tokens: int
    sampled_tokens: int
    was_cut: bool


def sampling_options(
    body: Body, read: Collection[str], decided: Collection[str], harmless: Collection[str]
) -> dict[str, Any]:
    """Return the sampling options that the request sets; raise for fields that are not known.

    Raises: Refused for a field in none of the three lists, since an option that is silently ignored would mislead;
    and for a sampling option of another type or out of range.
    """
    odd = sorted(name for name in body.keys() - {*read, *decided, *harmless} if body[name] is not None)
    if odd:
        raise Refused(400, f"{odd[0]} is not supported here; leave it out")
    values = checked(SamplingOptions, {name: body[name] for name in decided if body.get(name) is not None})
    return values.model_dump(exclude_unset=True)


def request_of(
    body: Body, decided: Mapping[str, Any], messages: Sequence[Message], tool: Callable[[Any], ToolSchema], **more: Any
) -> TurnRequest:
    """Return the request with the fields that every API has, and `more`.

    `tool` reads an entry of `tools`. Raises: Refused for a choice of tools that is neither auto nor none.
    """
    choice = body.get("tool_choice")
    choice = choice.get("type") if isinstance(choice, Mapping) else choice
    if choice not in (None, "auto", "none"):
        raise Refused(400, f"tool_choice={choice!r} is not supported here; use auto or none")
    return TurnRequest(
        model=name_in(body, "model", "the request"),
        messages=tuple(messages),
        tools=() if choice == "none" else tuple(map(tool, list_in(body, "tools"))),
        stream=flag_in(body, "stream"),
        decided=decided,
        **more,
    )


def text_in(content: Any, where: str, kinds: Collection[str]) -> str:
    """Return the text of a message's content: a string, null, or a list of parts of these kinds.

    Raises: Refused for images and other parts.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise Refused(400, f"{where} must be text or a list of parts, got {type(content).__name__}")
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in kinds or not isinstance(part.get("text"), str):
            raise Refused(400, f"{where}[{i}] is of type {kind!r}; only text is supported")
        texts.append(part["text"])
    return "".join(texts)


def list_in(body: Body, name: str) -> list[Any]:
    """Return a list of the request, empty if it is missing or null. Raises: Refused for anything else."""
    value = body.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise Refused(400, f"{name} must be a list, got {type(value).__name__}")
    return value


def object_in(value: Any, where: str) -> Body:
    """Return a JSON object. Raises: Refused for anything else."""
    if not isinstance(value, Mapping):
        raise Refused(400, f"{where} must be an object, got {type(value).__name__}")
    return value


def name_in(value: Body, field: str, where: str) -> str:
    """Return a text of an object. Raises: Refused if it is missing or empty."""
    name = value.get(field)
    if not isinstance(name, str) or not name:
        raise Refused(400, f"{where}.{field} must be a text, got {name!r:.80}")
    return name


def id_in(value: Body, field: str, where: str) -> str | None:
    """Return a text of an object that may be missing. Raises: Refused for anything else."""
    text = value.get(field)
    if text is not None and not isinstance(text, str):
        raise Refused(400, f"{where}.{field} must be a text, got {text!r:.80}")
    return text


def flag_in(body: Body, name: str) -> bool:
    """Return a switch of the request, off if it is missing or null. Raises: Refused for anything else."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise Refused(400, f"{name} must be true or false, got {value!r:.80}")
    return bool(value)


def stops_in(body: Body, name: str) -> tuple[str, ...]:
    """Return the texts at which an answer is cut: one, or a list. Raises: Refused for an empty text, or no text."""
    stop = body.get(name)
    stops = [stop] if isinstance(stop, str) else list_in(body, name)
    for i, text in enumerate(stops):
        if not isinstance(text, str) or not text:
            raise Refused(400, f"{name}[{i}] must be a text with at least a character, got {text!r:.80}")
    return tuple(stops)


def arguments_in(text: Any, where: str) -> Mapping[str, Any]:
    """Return the arguments of a call: an object, or JSON of one. Raises: Refused for anything else."""
    try:
        value = from_json(text.encode("utf-8", "surrogatepass"), allow_inf_nan=False) if isinstance(text, str) else text
    except ValueError as exc:
        raise Refused(400, f"{where} must be JSON of an object: {exc}") from exc
    return object_in({} if value is None else value, where)


def tool_in(value: Any, parameters: str = "parameters") -> ToolSchema:
    """Return a tool whose schema is in the field `parameters`. Raises: Refused for a schema that is no object."""
    tool = object_in(value, "a tool")
    name = name_in(tool, "name", "a tool")
    schema, where = tool.get(parameters), f"tool {name!r}"
    schema = object_in({"type": "object", "properties": {}} if schema is None else schema, f"{where}.{parameters}")
    return ToolSchema(name, id_in(tool, "description", where) or "", dict(schema))


def num_chars(messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> int:
    """Return the characters of a conversation, those of calls and tools as JSON."""
    calls = sum(len(call.name) + len(json_of(call)) for m in messages for call in m.calls)
    described = sum(len(t.name) + len(t.description) + len(json.dumps(t.parameters)) for t in tools)
    return sum(len(m.content) + len(m.name or "") for m in messages) + calls + described


def cut_at(text: str, stops: Sequence[str]) -> str:
    """Return the text before the first of `stops`, as the APIs define it."""
    found_at = [position for stop in stops if (position := text.find(stop)) >= 0]
    return text[: min(found_at)] if found_at else text


def json_of(call: Call) -> str:
    """Return a call's arguments as JSON. Equal arguments in equal order give equal text."""
    return json.dumps(dict(call.arguments), ensure_ascii=False)
