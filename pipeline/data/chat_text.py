"""Conversations as the text that a tokenizer's chat template writes, and such text as tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from verizero.pipeline.data.foreign_text import ForeignText
from verizero.pipeline.data.policy_text import CLOSE, OPEN, after_thinking
from verizero.pipeline.data.render import Ids, Renderer
from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.errors import DataError, boundary
from verizero.pipeline.rows import num_shared
from verizero.pipeline.types import Call, Message

WORDS = ("word 0", "term 1")
"""Two probe messages, with different first and last letters."""
CUT = "\ufdd0"
"""A mark at which text is cut into tokens: a character that Unicode allows in no text. It becomes no token itself."""


class ChatText:
    """Writes conversations with a chat template. Equal conversations give equal text, on any day and in any process."""

    def __init__(self, renderer: Renderer) -> None:
        """`renderer` has a tokenizer with a chat template. Raises: DataError if it refuses a question."""
        self.renderer, self.tokenizer = renderer, renderer.tokenizer
        self.foreign_text = ForeignText(renderer.tokenizer)
        source = renderer.tokenizer.chat_template
        self.splits_thinking = "reasoning_content" in str(source)
        """True if the template writes thinking apart from the words."""
        self._writes_json = False
        self._writes_json = self._takes_json()
        self.generation, self.close = self._around()
        """The texts that the template writes before a turn of the assistant and after it."""
        self.opens_thinking = OPEN in self.generation and after_thinking(self.generation) == len(self.generation)
        """True if the policy's turns begin within thinking."""
        self._drops_thinking = self._leaves_thinking_out()
        """True if the template removes the thinking of earlier turns."""

    def write(self, messages: Sequence[Message], tools: Sequence[ToolSchema], asks: bool) -> str:
        """Return the text of a conversation; `asks`: with the text that asks for the next turn.

        What is not the assistant's is cut within the names of special tokens, and so are the tools.
        Raises: DataError if the template refuses the conversation.
        """
        shown = [self._shown(m) for m in messages]
        schemas = [{"name": t.name, "description": t.description, "parameters": t.parameters} for t in tools]
        functions = [{"type": "function", "function": _changed(schema, self.inert)} for schema in schemas]
        roles = ", ".join(m.role for m in messages)
        with boundary(DataError, f"the chat template refuses a conversation of {roles}"):
            text = self.tokenizer.apply_chat_template(
                shown,
                tools=functions or None,
                add_generation_prompt=asks,
                tokenize=False,
                **self.renderer.chat_arguments,
            )
        return str(text)

    def inert(self, text: str, but: tuple[str, ...] = ()) -> str:
        """Return the text with a cut in every name of a special token in it, except `but`."""
        known = CUT.join(self.foreign_text.known(part) for part in text.split(CUT))
        return self.foreign_text.cut(known, CUT, but)

    def inert_message(self, message: Message, but: tuple[str, ...] = ()) -> Message:
        """Return the message with its texts cut in all of its fields, within what asks for a turn too."""
        return _with_texts(message, lambda text: _cut_within(self.inert(text, but), self.generation))

    def of_others(self, message: Message) -> Message:
        """Return a message that the policy has not sampled, as text: the assistant's too may be anybody's words.

        Where the template leaves earlier thinking out, so does this: the template no longer sees its marks.
        """
        if message.role != "assistant":
            return message
        return self.inert_message(self.without_thinking(message) if self._drops_thinking else message)

    def without_thinking(self, message: Message) -> Message:
        """Return the message without its thinking."""
        if message.role != "assistant":
            return message
        # Many clients give back the words alone: where nothing closes thinking, there is none.
        is_open = self.opens_thinking and CLOSE in message.content
        at = 0 if self.splits_thinking else after_thinking(message.content, is_open)
        return replace(message, thinking=None, content=message.content[at:])

    def end_of(self, words: str) -> str:
        """Return the special token at the end of a turn's text; "" if the turn was cut."""
        return max((name for name in self.foreign_text.added if words.endswith(name)), key=len, default="")

    def ids(self, text: str) -> Ids:
        """Return the tokens of a template's text; the pieces between cuts are encoded one by one."""
        encode = self.tokenizer
        return tuple(
            int(i) for part in text.split(CUT) if part for i in encode(part, add_special_tokens=False)["input_ids"]
        )

    def text_of(self, ids: Ids, marks: Sequence[str] = ()) -> str:
        """Return the text of tokens, special ones included. A mark that is spelled by other tokens than its own is cut.

        A mark that the tokenizer has no token for is any text that spells it.
        """
        text = self._decoded(ids)
        own = {self.foreign_text.added[m]: m for m in marks if m in self.foreign_text.added}
        if all(text.count(mark) == ids.count(i) for i, mark in own.items()):
            return text
        parts, start = [], 0
        for at, i in [*((at, i) for at, i in enumerate(ids) if i in own), (len(ids), None)]:
            part = self._decoded(ids[start:at])
            for mark in own.values():
                part = _cut_within(part, mark)
            parts += [part, "" if i is None else own[i]]
            start = at + 1
        return "".join(parts)

    def _decoded(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _shown(self, message: Message) -> dict[str, Any]:
        """Return the message as a dict for templates."""
        if message.role != "assistant":
            shown: dict[str, Any] = {"role": message.role, "content": self.inert(message.content)}
            if message.role == "tool":
                extra = {"name": message.name, "tool_call_id": _letters(message.answers)}
                shown |= {k: self.inert(v) for k, v in extra.items() if v is not None}
            return shown
        shown = {"role": "assistant", "content": message.content}
        if message.thinking is not None:
            shown["reasoning_content"] = message.thinking
        if message.calls:
            shown["tool_calls"] = [self._call(c) for c in message.calls]
        return shown

    def _call(self, call: Call) -> Mapping[str, Any]:
        arguments = dict(call.arguments)
        written = json.dumps(arguments, ensure_ascii=False) if self._writes_json else arguments
        return {"type": "function", "id": _letters(call.id), "function": {"name": call.name, "arguments": written}}

    def _takes_json(self) -> bool:
        """Return True if the template takes the arguments of calls as JSON in a text only."""
        call = Message("assistant", "", (Call("0-0", "f", {"a": 1}),))
        try:
            self.write([Message("user", "x"), call, Message("tool", "y", answers="0-0", name="f")], (), asks=True)
        except DataError as exc:
            return isinstance(exc.__cause__, TypeError)
        return False

    def _leaves_thinking_out(self) -> bool:
        turn = Message("assistant", f"{'' if self.opens_thinking else OPEN}{WORDS[0]}{CLOSE}{WORDS[1]}")
        try:
            text = self.write([Message("user", "x"), turn, Message("user", "y")], (), asks=True)
        except DataError:
            return False
        return WORDS[0] not in text and WORDS[1] in text

    def _around(self) -> tuple[str, str]:
        question = [Message("user", "x")]
        plain, asking = self.write(question, (), asks=False), self.write(question, (), asks=True)
        return asking[num_shared(plain, asking) :], self.close_behind(question, ())

    def close_behind(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> str:
        """Return what the template writes behind an assistant's words that follow these messages."""
        first, second = (self.write([*messages, Message("assistant", text)], tools, asks=False) for text in WORDS)
        if first == second:
            return ""  # it shows none of the assistant's words
        return first[len(first) - num_shared(first[::-1], second[::-1]) :]


def whole(message: Message) -> Message:
    """Return the message with the cuts removed from its texts."""
    return _with_texts(message, lambda text: text.replace(CUT, ""))


def _with_texts(message: Message, change: Callable[[str], str]) -> Message:
    """Return the message with each of its texts changed, those of its calls and their arguments too."""
    calls = tuple(Call(change(c.id), change(c.name), _changed(c.arguments, change)) for c in message.calls)
    texts = (message.content, message.thinking, message.answers, message.name)
    content, thinking, answers, name = _changed(texts, change)
    return replace(message, content=content, calls=calls, answers=answers, name=name, thinking=thinking)


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    """Return the value with each of its texts changed, the names of its fields too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_changed(k, change): _changed(v, change) for k, v in value.items()}
    return [_changed(v, change) for v in value] if isinstance(value, list | tuple) else value


def _cut_within(text: str, name: str) -> str:
    return text.replace(name, name[0] + CUT + name[1:]) if len(name) > 1 else text


def _letters(name: str | None) -> str | None:
    """Return a call's id in nine digits, which the strictest templates take too."""
    if name is None:
        return None
    numbers = re.fullmatch(r"(\d+)-(\d+)", name)
    return f"{1000 * int(numbers[1]) + int(numbers[2]):09d}" if numbers else name
