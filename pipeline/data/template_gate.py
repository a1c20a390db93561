"""Find out, at the start of a run, whether a chat template changes the history of a conversation."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from verizero.pipeline.data.chat_turns import ChatTurns
from verizero.pipeline.data.family_turns import FamilyTurns
from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.environments.conversing import Conversing
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.seeds import stream
from verizero.pipeline.types import Call, Message

CONVERSATIONS = 200
MAX_TURNS = 5
LETTERS = "abcdefghij"


def template_note(
    talk: Conversing,
    tools: Sequence[ToolSchema],
    seed: int,
    has_system: bool = False,
    num_conversations: int = CONVERSATIONS,
) -> str:
    """Play random conversations with the template, and return in words where it rewrites their history; "" if nowhere.

    `tools` are those that the run's environments show; without any, no tool answers. `has_system`: conversations may
    begin with a system message. Turns without a chat template rewrite nothing by construction.
    Raises: ConfigError if the template does not show the tools, the calls or their answers; DataError if it refuses a
    conversation of users and the assistant.
    """
    if not isinstance(talk, ChatTurns):
        return ""
    if tools and (reason := _not_shown(talk, tools)):
        raise ConfigError(
            f"the chat template cannot show tools: {reason}; use another template, or an environment without tools"
        )
    played: Counter[tuple[str, str | None]] = Counter()
    for number in range(num_conversations):
        rng = stream(seed, "template gate", number)
        system = [Message("system", _words(rng))] if has_system else []
        _play(talk, tools, [*system, Message("user", _words(rng))], rng, played)
    causes = sorted({cause for _, cause in played if cause is not None})
    if not causes:
        return ""
    turns, forks = Counter[str](), Counter[str]()
    for (role, cause), n in played.items():
        turns[role] += n
        forks[role] += n if cause is not None else 0
    after = " and ".join(f"{forks[r]} of {n} answers of a {r}" for r, n in sorted(turns.items()))
    return (
        f"the chat template rewrites the history ({', '.join(causes)}) after {after}; each time a new row begins, "
        "which costs its prompt once more"
    )


def _not_shown(talk: ChatTurns, tools: Sequence[ToolSchema]) -> str | None:
    """Return which of tools, calls and answers the template does not show; None if it shows all."""
    question, call = Message("user", "question"), Call("0-0", tools[0].name, {"x": "argument-of-the-call"})
    answer = Message("tool", "answer-of-the-tool", answers="0-0", name=call.name)
    write = talk.chat.write
    try:
        bare, shown = write([question], (), asks=True), write([question], tools, asks=True)
        answered = write([question, Message("assistant", "", (call,)), answer], tools, asks=True)
    except DataError as exc:
        return str(exc)
    hidden = [t.name for t in tools if shown.count(t.name) <= bare.count(t.name)]
    if hidden:
        return f"the prompt does not show {', '.join(hidden)}"
    if "argument-of-the-call" not in answered:
        return "it leaves calls out"
    return None if "answer-of-the-tool" in answered else "it leaves the answers of tools out"


def _play(
    talk: ChatTurns,
    tools: Sequence[ToolSchema],
    first: Sequence[Message],
    rng: random.Random,
    played: Counter[tuple[str, str | None]],
) -> None:
    """Play one conversation with random words, and count (role of an answer, why it rewrites the history or None)."""
    messages = list(first)
    thinks = talk.chat.splits_thinking or talk.chat.opens_thinking
    for turn in range(rng.randint(2, MAX_TURNS)):
        must_call = bool(tools) and rng.random() < 0.6
        calls = tuple(_call(rng, tools, turn, n) for n in range(rng.choice([1, 1, 2]) if must_call else 0))
        thinking = _words(rng) if thinks and rng.random() < 0.8 else None
        message = Message("assistant", "" if calls and rng.random() < 0.5 else _words(rng), calls, thinking=thinking)
        try:
            words = talk.write(message, tools)
        except DataError:  # the form of calls takes no more than one, with no words
            message = Message("assistant", "", message.calls[:1], thinking=message.thinking)
            words = talk.write(message, tools)
        if isinstance(talk, FamilyTurns):
            talk.require_read(message, words, tools)
        message = talk.read(words, "stop", turn, tools).message
        messages.append(message)
        new = [Message("tool", _words(rng), answers=c.id, name=c.name) for c in message.calls]
        new = new or [Message("user", _words(rng))]
        played[new[0].role, talk.rewritten(messages, new, tools, words, "stop")] += 1
        messages += new


def _call(rng: random.Random, tools: Sequence[ToolSchema], turn: int, number: int) -> Call:
    tool = rng.choice(tools)
    arguments: dict[str, Any] = {
        key: rng.randrange(100) if schema.get("type") in ("integer", "number") else _words(rng)
        for key, schema in tool.parameters.get("properties", {}).items()
    }
    return Call(f"{turn}-{number}", tool.name, arguments)


def _words(rng: random.Random) -> str:
    return " ".join("".join(rng.choices(LETTERS, k=4)) for _ in range(rng.randint(1, 4)))
