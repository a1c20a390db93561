"""Turns in the form of a family of models, e.g. GLM, which the package `renderers` reads and writes.

Prompts stay those of the model's own chat template, which `ChatTurns` continues without encoding anything again. The
package says only what the policy's tokens mean, and which tokens mean a message. Before a run, `template_gate.py` plays
conversations with both, so a family that does not fit the template is seen there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verizero.pipeline.config.template import FAMILY
from verizero.pipeline.data.chat_text import CUT
from verizero.pipeline.data.chat_turns import ChatTurns, Ids, Tools
from verizero.pipeline.data.policy_text import CLOSE, OPEN, call_id
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.environments.conversing import FoundCalls, ReadTurn
from verizero.pipeline.errors import ConfigError, DataError, boundary
from verizero.pipeline.types import Call, FinishReason, Message

QUESTION = {"role": "user", "content": "x"}


class FamilyTurns(ChatTurns):
    """Reads and writes the policy's turns as a family of models does."""

    def __init__(self, renderer: Renderer, name: str) -> None:
        """`name`: a family, e.g. "glm-4.5". `renderer` has the template "chat".

        Raises: ConfigError if the package is not installed, or knows no such family; DataError for a tokenizer that
        lacks the family's special tokens, or a chat template that refuses a question.
        """
        super().__init__(renderer, _NoForm())
        try:
            from renderers import config_from_name, create_renderer
        except ImportError as exc:
            raise ConfigError(
                f"template.calls={FAMILY + name!r} needs the package renderers: pip install 'verizero[renderers]'"
            ) from exc
        with boundary(ConfigError, f"template.calls={FAMILY + name!r} names no family of renderers"):
            config = config_from_name(name)
        with boundary(DataError, f"template.calls={FAMILY + name!r} does not fit the tokenizer"):
            self.family: Any = create_renderer(renderer.tokenizer, config)

    def read(self, sampled: Sequence[int], finish_reason: FinishReason, turn: int, tools: Tools) -> ReadTurn:
        """Return what the policy said, by its tokens. A turn that was cut, or has a malformed call, makes no calls."""
        ids = tuple(sampled)[: -1 if finish_reason == "stop" and sampled else None]
        text = self.chat.text_of(ids)
        if finish_reason == "length":
            return ReadTurn(Message("assistant", text))
        asked = self.family.render_ids([QUESTION], tools=_specs(tools), add_generation_prompt=True)
        # The prompt tells whether the turn begins within thinking.
        parsed = self.family.parse_response(list(ids), tools=_specs(tools), prompt_ids=asked)
        calls = []
        for number, call in enumerate(parsed.tool_calls):
            if call.status != "ok" or not isinstance(call.arguments, dict) or not call.name:
                return ReadTurn(Message("assistant", text), f"{call.status}: {call.raw[:200]}")
            calls.append(Call(call_id(turn, number), call.name, call.arguments))
        thinking = parsed.reasoning_content or None
        return ReadTurn(Message("assistant", parsed.content or "", tuple(calls), thinking=thinking))

    def write(self, message: Message, tools: Tools) -> Ids:
        """Return the tokens of a policy that says this message, with the end token.

        Raises: DataError for texts with names of special tokens, and for what the family cannot write.
        """
        texts = [message.content, message.thinking or "", *(repr(call.arguments) for call in message.calls)]
        if any(self.foreign_text.has_marks(text) for text in texts):
            raise DataError("a message of the policy has the name of a special token, which would become that token")
        specs = _specs(tools)
        with boundary(DataError, "the family of template.calls cannot write a message of the policy"):
            asked = self.family.render_ids([QUESTION], tools=specs, add_generation_prompt=True)
            whole = self.family.render_ids([QUESTION, _shown(message)], tools=specs, add_generation_prompt=False)
            ends = [self.chat.text_of((i,)) for i in self.family.get_stop_token_ids()]
        turn = self._behind(self.chat.text_of(tuple(asked)), self.chat.text_of(tuple(whole)))
        last = min((at for end in ends if (at := turn.find(end)) >= 0), default=len(turn))
        return (*self.chat.ids(turn[:last]), int(self.renderer.tokenizer.eos_token_id))

    def _behind(self, asked: str, whole: str) -> str:
        """Return the text of a conversation behind the prompt of its last turn. Thinking that it opens is closed."""
        if whole.startswith(asked):
            return whole[len(asked) :]
        begin = asked.rfind(OPEN)
        if self.chat.opens_thinking and begin >= 0 and whole.startswith(asked[:begin]) and CLOSE in whole[begin:]:
            return "\n" + whole[whole.index(CLOSE, begin) :]
        raise DataError("the family of template.calls writes a turn that does not follow its own prompt")

    def require_equal(self, history: Sequence[Message], ids: Ids, tools: Tools) -> None:
        """Raise DataError if the chat template writes the last message of `history` differently from `ids`."""
        words = self.chat.text_of(ids[:-1])
        asked, shown = (self.chat.write(h, tools, asks=h is not history) for h in (history[:-1], history))
        held = shown[len(asked) :] if shown.startswith(asked) else shown[len(asked[: asked.rfind(OPEN)]) :]
        for mark in (CUT, OPEN, CLOSE):  # thinking that nobody wrote is empty, with marks around it or without any
            words, held = words.replace(mark, ""), held.replace(mark, "")
        if not held.strip().startswith(words.strip()):
            raise DataError(
                f"template.calls={self.renderer.template.calls!r} writes a turn of the policy as {words[-200:]!r}, and "
                f"the model's own chat template as {held[-200:]!r}; use another form of calls"
            )


class _NoForm:
    """The form of calls of turns whose calls a family reads and writes: it has none."""

    def read(self, text: str, tools: Tools = ()) -> FoundCalls:
        """Return the text without any calls."""
        return FoundCalls(text)

    def write(self, content: str, calls: Sequence[Any], tools: Tools = ()) -> str:
        """Return the content."""
        return content


def _specs(tools: Tools) -> list[dict[str, Any]] | None:
    functions = [{"name": t.name, "description": t.description, "parameters": t.parameters} for t in tools]
    return [{"type": "function", "function": function} for function in functions] or None


def _shown(message: Message) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.thinking is not None:
        shown["reasoning_content"] = message.thinking
    if message.calls:
        shown["tool_calls"] = [
            {"id": f"call{i:05d}", "type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}}
            for i, c in enumerate(message.calls)
        ]
    return shown
