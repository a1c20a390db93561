"""Turns in the form of a family of models, e.g. GLM, which the package `renderers` reads.

Prompts stay those of the model's own chat template, which `ChatTurns` continues without encoding anything again. That
template writes turns to imitate too. The package says only what the policy's tokens mean. Before a run,
`template_gate.py` plays conversations with both, so a family that does not read what the template writes is seen there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verizero.pipeline.config.template import FAMILY
from verizero.pipeline.data.chat_turns import ChatTurns, Tools
from verizero.pipeline.data.policy_text import CLOSE, OPEN, call_id
from verizero.pipeline.data.render import Ids, Renderer
from verizero.pipeline.environments.conversing import FoundCalls, ReadTurn
from verizero.pipeline.errors import ConfigError, DataError, boundary
from verizero.pipeline.types import Call, FinishReason, Message

QUESTION = Message("user", "x")


class FamilyTurns(ChatTurns):
    """Reads the policy's turns as a family of models says them, and writes them by the chat template."""

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
                f"template.calls={FAMILY + name!r} needs the package renderers: pip install '.[renderers]'"
            ) from exc
        with boundary(ConfigError, f"template.calls={FAMILY + name!r} names no family of renderers"):
            config = config_from_name(name)
        with boundary(DataError, f"template.calls={FAMILY + name!r} does not fit the tokenizer"):
            self.family: Any = create_renderer(renderer.tokenizer, config)

    def read(self, sampled: Sequence[int], finish_reason: FinishReason, turn: int, tools: Tools) -> ReadTurn:
        """Return what the policy said, by its tokens. A turn that was cut, or has a malformed call, makes no calls."""
        ids = tuple(sampled)[: -1 if finish_reason == "stop" and sampled else None]
        # The prompt tells how the turn begins, e.g. within thinking.
        asked = self.chat.ids(self.chat.write([QUESTION], tools, asks=True))
        functions = [{"name": t.name, "description": t.description, "parameters": t.parameters} for t in tools]
        specs = [{"type": "function", "function": function} for function in functions] or None
        parsed = self.family.parse_response(list(ids), tools=specs, prompt_ids=list(asked))
        words, thinking = parsed.content or "", (parsed.reasoning_content or "").strip("\n") or None
        parsed_calls = parsed.tool_calls
        wrong = [c for c in parsed_calls if c.status != "ok" or not isinstance(c.arguments, dict) or not c.name]
        if wrong or (parsed_calls and finish_reason == "length"):
            start = parsed_calls[0].token_span[0] if parsed_calls[0].token_span else 0
            words, thinking = (words, thinking) if start else ("", None)
            message = Message("assistant", words + self.chat.text_of(ids[start:]), thinking=thinking)
            unread = None if finish_reason == "length" else f"{wrong[0].status}: {wrong[0].raw[:200]}"
            return ReadTurn(message, unread)
        calls = [Call(call_id(turn, number), call.name, call.arguments) for number, call in enumerate(parsed_calls)]
        return ReadTurn(Message("assistant", words, tuple(calls), thinking=thinking))

    def write(self, message: Message, tools: Tools) -> Ids:
        """Return the tokens of a policy that says this message, as the chat template writes it, with its end token.

        Some families end a turn with calls by another token than other turns.

        Raises: DataError for texts with names of special tokens, and for what the template refuses or leaves out.
        """
        texts = [message.content, message.thinking or "", *(repr(call.arguments) for call in message.calls)]
        if any(self.foreign_text.has_marks(text) for text in texts):
            raise DataError("a message of the policy has the name of a special token, which would become that token")
        # Some templates show thinking that nobody wrote in the last message, and no longer once a tool has answered it.
        answers = [Message("tool", "x", answers=call.id, name=call.name) for call in message.calls]
        asked = self.chat.write([QUESTION], tools, asks=True)
        turn = self._behind(asked, self.chat.write([QUESTION, message, *answers], tools, asks=False))
        eos = int(self.renderer.tokenizer.eos_token_id)
        places = {turn.find(self.chat.text_of((i,))): int(i) for i in (eos, *self.family.get_stop_token_ids())}
        last = min((at for at in places if at >= 0), default=len(turn))
        turn = turn[:last]
        for text in (message.content, message.thinking or ""):
            if text.strip() not in turn:
                raise DataError(f"the chat template leaves {text[:200]!r} out of a message of the policy")
        return (*self.chat.ids(turn), places.get(last, eos))

    def _behind(self, asked: str, whole: str) -> str:
        """Return the text of a conversation behind the prompt of its last turn. Thinking that it opens is closed."""
        if whole.startswith(asked):
            return whole[len(asked) :]
        begin = asked.rfind(OPEN)
        if self.chat.opens_thinking and begin >= 0 and whole.startswith(asked[:begin]) and CLOSE in whole[begin:]:
            return "\n" + whole[whole.index(CLOSE, begin) :]
        raise DataError(
            "the chat template writes a turn of the policy that does not follow its prompt; use another form of calls"
        )

    def require_read(self, message: Message, ids: Ids, tools: Tools) -> None:
        """Raise DataError if the family does not read the message in its tokens, as `write` has given them."""
        turn = self.read(ids, "stop", 0, tools)
        wanted, got = (
            (m.content.strip(), (m.thinking or "").strip(), [(c.name, dict(c.arguments)) for c in m.calls])
            for m in (message, turn.message)
        )
        if turn.unread is not None or got != wanted:
            raise DataError(
                f"the model's own chat template writes a turn of the policy as {self.chat.text_of(ids)[-300:]!r}, and "
                f"template.calls={self.renderer.template.calls!r} reads it as {got}, not {wanted}; use another form"
            )


class _NoForm:
    """The form of calls of turns whose calls a family reads and writes: it has none."""

    def read(self, text: str, tools: Tools = ()) -> FoundCalls:
        """Return the text without any calls."""
        return FoundCalls(text)

    def write(self, content: str, calls: Sequence[Any], tools: Tools = ()) -> str:
        """Return the content."""
        return content
