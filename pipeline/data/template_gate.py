"""Measure, at the start of a run, whether a chat template changes the history of a conversation."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from verizero.pipeline.data.chat_turns import ChatTurns
from verizero.pipeline.data.family_turns import FamilyTurns
from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.environments.conversing import Conversing
from verizero.pipeline.errors import DataError
from verizero.pipeline.seeds import stream
from verizero.pipeline.types import Call, Message

TemplateClass = Literal["keeps", "keeps within a tool cycle", "rewrites", "cannot show tools"]
CONVERSATIONS = 200
MAX_TURNS = 5
LETTERS = "abcdefghij"


@dataclass(frozen=True, slots=True)
class Gate:
    """The result of the measurement.

    Example: Gate("rewrites", {"class": "rewrites", "turns": 512, ...}, "the template rewrites ...")
    """

    kind: TemplateClass
    record: dict[str, Any]
    """The content of templates.json."""
    note: str
    """The result in words, for people; empty if there is nothing to know."""


@dataclass(slots=True)
class _Counts:
    turns: Counter[str] = field(default_factory=Counter)
    """By the role that speaks after the policy."""
    forks: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)


def template_gate(
    talk: Conversing,
    tools: Sequence[ToolSchema],
    seed: int,
    users_speak: bool = True,
    has_system: bool = False,
    num_conversations: int = CONVERSATIONS,
) -> Gate:
    """Play random conversations with the template, and return what it does to their history.

    `tools` are those that the run's environments show; without any, no tool answers. `users_speak`: a user may speak
    after the policy, which an environment without tools always lets one do. `has_system`: conversations may begin with
    a system message. Turns without a chat template keep by construction.
    Raises: DataError if the template refuses a conversation of users and the assistant.
    """
    if not isinstance(talk, ChatTurns):
        return Gate("keeps", {"class": "keeps", "template": "text", "turns": 0}, "")
    reason = _not_shown(talk, tools) if tools else None
    record: dict[str, Any] = {
        "class": "cannot show tools",
        "template": hashlib.sha256(str(talk.renderer.tokenizer.chat_template).encode()).hexdigest(),
        "history": talk.renderer.template.history,
        "date": talk.renderer.template.date,
        "conversations": num_conversations,
    }
    if reason is not None:
        note = f"the chat template cannot show tools: {reason}; use another template, or an environment without tools"
        return Gate("cannot show tools", record | {"conversations": 0, "reason": reason}, note)
    counts = _Counts()
    for number in range(num_conversations):
        rng = stream(seed, "template gate", number)
        system = [Message("system", _words(rng))] if has_system else []
        _play(talk, tools, [*system, Message("user", _words(rng))], users_speak or not tools, rng, counts)
    kind: TemplateClass = "rewrites"
    if not counts.causes:
        kind = "keeps"
    elif tools and not counts.forks["tool"]:
        kind = "keeps within a tool cycle"
    record |= {
        "class": kind,
        "turns": counts.turns.total(),
        "forks": {role: f"{counts.forks[role]} of {n}" for role, n in sorted(counts.turns.items())},
        "causes": dict(sorted(counts.causes.items())),
    }
    return Gate(kind, record, _note(kind, counts, talk.renderer.template.history))


def _note(kind: TemplateClass, counts: _Counts, history: str) -> str:
    if kind == "keeps":
        return ""
    after = " and ".join(f"{counts.forks[r]} of {n} answers of a {r}" for r, n in sorted(counts.turns.items()))
    text = f"the chat template rewrites the history ({', '.join(sorted(counts.causes))}) after {after}"
    if history == "keep":
        return f"{text}; template.history: keep trains on a history that a server with this template will never show"
    return f"{text}; each time a new row begins, which costs its prompt once more"


def _not_shown(talk: ChatTurns, tools: Sequence[ToolSchema]) -> str | None:
    """Return which of tools, calls and answers the template does not show; None if it shows all."""
    question, call = Message("user", "question"), Call("0-0", tools[0].name, {"x": "argument-of-the-call"})
    asking = [question, Message("assistant", "", (call,))]
    answered = [*asking, Message("tool", "answer-of-the-tool", answers="0-0", name=call.name)]
    write = talk.chat.write
    try:
        bare, shown = write([question], (), asks=True), write([question], tools, asks=True)
        hidden = [t.name for t in tools if shown.count(t.name) <= bare.count(t.name)]
        if hidden:
            return f"the prompt does not show {', '.join(hidden)}"
        if "argument-of-the-call" not in write(answered, tools, asks=True):
            return "it leaves calls out"
        if "answer-of-the-tool" not in write(answered, tools, asks=True):
            return "it leaves the answers of tools out"
    except DataError as exc:
        return str(exc)
    return None


def _play(
    talk: ChatTurns,
    tools: Sequence[ToolSchema],
    first: Sequence[Message],
    users_speak: bool,
    rng: random.Random,
    counts: _Counts,
) -> None:
    """Play one conversation with random words, and count what each answer does to the history."""
    messages = list(first)
    thinks = talk.chat.splits_thinking or talk.chat.opens_thinking
    for turn in range(rng.randint(2, MAX_TURNS)):
        must_call = bool(tools) and (not users_speak or rng.random() < 0.6)
        calls = tuple(_call(rng, tools, turn, n) for n in range(rng.choice([1, 1, 2]) if must_call else 0))
        thinking = _words(rng) if thinks and rng.random() < 0.8 else None
        message = Message("assistant", "" if calls and rng.random() < 0.5 else _words(rng), calls, thinking=thinking)
        message, words = _said(talk, message, tools)
        if isinstance(talk, FamilyTurns):
            talk.require_read(message, words, tools)
        message = talk.read(words, "stop", turn, tools).message
        messages.append(message)
        new = [Message("tool", _words(rng), answers=c.id, name=c.name) for c in message.calls]
        new = new or [Message("user", _words(rng))]
        fork = talk.rewritten(messages, new, tools, words, "stop")
        messages += new
        counts.turns[new[0].role] += 1
        if fork is not None:
            counts.forks[new[0].role] += 1
            counts.causes[fork] += 1


def _said(talk: ChatTurns, message: Message, tools: Sequence[ToolSchema]) -> tuple[Message, tuple[int, ...]]:
    """Return the message and its tokens; of its first call alone, where the form of calls takes no more."""
    try:
        return message, talk.write(message, tools)
    except DataError:
        message = Message("assistant", "", message.calls[:1], thinking=message.thinking)
        return message, talk.write(message, tools)


def _call(rng: random.Random, tools: Sequence[ToolSchema], turn: int, number: int) -> Call:
    tool = rng.choice(tools)
    properties = tool.parameters.get("properties", {})
    arguments: dict[str, Any] = {
        key: rng.randrange(100) if schema.get("type") in ("integer", "number") else _words(rng)
        for key, schema in properties.items()
    }
    return Call(f"{turn}-{number}", tool.name, arguments)


def _words(rng: random.Random) -> str:
    return " ".join("".join(rng.choices(LETTERS, k=4)) for _ in range(rng.randint(1, 4)))
