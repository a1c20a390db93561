"""The parts that the three wires share: a request read, an answer to write, a refusal that names the field."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pipeline.environments.base import ToolSchema
from pipeline.types import Call, Message

Body = Mapping[str, Any]
Event = tuple[str | None, Any]
"""A server-sent event: (its name, if the wire names events; its data)."""


class Refused(Exception):
    """A request that is answered with an error of its wire."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for a completion.

    Example: Asked(model="policy", messages=(Message("user", "hello"),))
    """

    model: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()
    stream: bool = False
    with_usage: bool = False
    """The last event of a stream tells the numbers of tokens."""
    stop: tuple[str, ...] = ()
    """Texts at which the answer is cut."""
    decided: Mapping[str, Any] = field(default_factory=dict)
    """Values that a recipe decides and a server may follow, e.g. of temperature."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A completion, as an agent gets it.

    Example: Answer("c-0", Message("assistant", "hi"), prompt_tokens=5, sampled_tokens=2, was_cut=False)
    """

    id: str
    message: Message
    prompt_tokens: int
    sampled_tokens: int
    was_cut: bool


class Wire(Protocol):
    """One form of requests and answers."""

    def read(self, body: Body) -> Asked:
        """Return the request. Raises: Refused naming the field that is wrong or not supported."""
        ...

    def write(self, asked: Asked, answer: Answer) -> dict[str, Any]:
        """Return the answer as one JSON object."""
        ...

    def events(self, asked: Asked, answer: Answer) -> Iterator[Event]:
        """Yield the answer as events of a stream."""
        ...

    def error(self, refused: Refused) -> dict[str, Any]:
        """Return the wire's form of an error."""
        ...


def known_only(
    body: Body, read: Collection[str], decided: Collection[str], harmless: Collection[str]
) -> dict[str, Any]:
    """Return the fields of `decided` that the request sets, with their values.

    Raises: Refused for a field that is in none of the three: an option that is silently ignored would mislead.
    """
    odd = sorted(name for name in body.keys() - {*read, *decided, *harmless} if body[name] is not None)
    if odd:
        raise Refused(400, f"{odd[0]} is not supported here; leave it out")
    return {name: body[name] for name in decided if body.get(name) is not None}


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


def arguments_in(text: Any, where: str) -> Mapping[str, Any]:
    """Return the arguments of a call: an object, or JSON of one. Raises: Refused for anything else."""
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except ValueError as exc:
        raise Refused(400, f"{where} must be JSON of an object: {exc}") from exc
    return object_in({} if value is None else value, where)


def schema_of(name: str, description: Any, parameters: Any, where: str) -> ToolSchema:
    """Return a tool. Raises: Refused for parameters that are no object."""
    schema = object_in(
        {"type": "object", "properties": {}} if parameters is None else parameters, f"{where} parameters"
    )
    return ToolSchema(name, str(description or ""), dict(schema))


def cut_at(text: str, stops: Sequence[str]) -> str:
    """Return the text up to the first of `stops`, as the wires define it."""
    places = [at for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(places)] if places else text


def json_of(call: Call) -> str:
    """Return a call's arguments as JSON, always in the same form."""
    return json.dumps(dict(call.arguments), ensure_ascii=False)
