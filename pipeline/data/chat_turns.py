"""Conversations as tokens by a chat template: what was sampled stays, and what the template adds is spliced in.

The template is only asked for text. The next prompt is what was held, and the tokens of the text that the template
writes behind it; a text that it writes differently now, e.g. without earlier thinking, begins a new row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from verizero.pipeline.data.chat_text import WORDS, ChatText, whole
from verizero.pipeline.data.policy_text import CLOSE, OPEN, read_turn, text_of_turn
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.rewritten_row import num_new, rewritten_row
from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.environments.conversing import CallForm, NextPrompt, NotFromPolicy, PromptPiece, ReadTurn
from verizero.pipeline.errors import DataError
from verizero.pipeline.rows import num_shared
from verizero.pipeline.types import FinishReason, Message, Prompt

Ids = tuple[int, ...]
Tools = Sequence[ToolSchema]


@dataclass(frozen=True, slots=True)
class _Spliced:
    """The continuation of a row as text; after a fork, the text of the whole conversation."""

    text: str
    fork: str | None = None


class ChatTurns:
    """Reads and writes turns with the tokenizer's chat template."""

    def __init__(self, renderer: Renderer, form: CallForm) -> None:
        """`renderer` has the template "chat"; `form` has the `read` and `write` of calls.

        Raises: DataError if the chat template refuses a question.
        """
        self.renderer, self.form = renderer, form
        self.chat = ChatText(renderer)
        self.foreign_text = self.chat.foreign_text
        self._marks = (*getattr(form, "MARKS", ()), OPEN, CLOSE)

    def opening(self, prompt: Prompt, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return the messages of the first prompt."""
        if messages:
            return tuple(messages)
        system = prompt.system if prompt.system is not None else self.renderer.template.system
        first = [] if system is None else [Message("system", system)]
        return (*first, Message("user", prompt.asked))

    def begin(self, prompt: Prompt, messages: Sequence[Message], tools: Tools) -> Ids:
        """Return the tokens of the first prompt; of the prompt's question alone, those of a single response.

        Raises: DataError naming the prompt if the template refuses it.
        """
        if not messages and not tools:
            return self.renderer.prompt_ids(prompt)
        opening = [self.chat.of_others(m) for m in self.opening(prompt, messages)]
        return self.chat.ids(self.chat.write(opening, tools, asks=True))

    def read(self, sampled: Sequence[int], finish_reason: FinishReason, turn: int, tools: Tools) -> ReadTurn:
        """Return what the policy said. Thinking is apart if the template has a place for it.

        Tags of calls that the tokenizer has tokens for are read from those tokens alone.
        """
        ids = tuple(sampled)[: -1 if finish_reason == "stop" and sampled else None]
        text, is_open = self.chat.text_of(ids, self._marks), self.chat.opens_thinking
        result = read_turn(self.form, text, finish_reason, turn, tools, is_open)
        message = result.message
        if self.chat.splits_thinking:
            message = _split(message, text, is_open)
        return replace(result, message=whole(message))

    def write(self, message: Message, tools: Tools) -> Ids:
        """Return the tokens of a policy that says this message, with the end token. Raises: DataError."""
        inert = replace(message, content=self.chat.inert(message.content), thinking=None)
        text = text_of_turn(self.form, inert, tools)
        if message.thinking is not None or self.chat.opens_thinking:
            thinking = "\n" if not message.thinking else f"{self.chat.inert(message.thinking)}\n"
            text = f"{'' if self.chat.opens_thinking else OPEN + chr(10)}{thinking}{CLOSE}\n\n{text}"
        return (*self.chat.ids(text), int(self.renderer.tokenizer.eos_token_id))

    def extend(
        self,
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Tools,
        sampled: Sequence[Ids],
        finish_reason: FinishReason,
    ) -> NextPrompt:
        """Return the text that the template writes behind the last turn, in tokens; or a new row.

        With `template.history: keep` there is never a new row.
        Raises: DataError if the template refuses the conversation, or shows nothing of the new messages.
        """
        for message in new:
            self.foreign_text.known(message.content)  # counts what is replaced, once
        places = _places(history, len(sampled))
        history = [m if n in places else self.chat.of_others(m) for n, m in enumerate(history)]
        new = [self.chat.of_others(m) for m in new]
        spliced = self._spliced(history, new, tools, sampled[-1], finish_reason)
        if spliced.fork is not None:
            if self.renderer.template.history == "template":
                pieces = rewritten_row(self.chat, [*history, *new], tools, sampled, places)
                return NextPrompt(pieces, spliced.fork, num_new(self.chat, history, new, tools, pieces[-1].ids))
            spliced = _Spliced(self._behind_any(history, new, tools, sampled[-1], finish_reason))
        ids = self.chat.ids(spliced.text)
        if not ids:
            roles = ", ".join(m.role for m in new)
            raise DataError(f"the chat template writes nothing for messages of {roles}; use another template")
        return NextPrompt((PromptPiece(ids),))

    def rewritten(
        self, history: Sequence[Message], new: Sequence[Message], tools: Tools, ids: Ids, finish_reason: FinishReason
    ) -> str | None:
        """Return why the template writes the history differently before `new`; None if it does not.

        `ids` are the tokens of the last turn.
        """
        return self._spliced(history, new, tools, ids, finish_reason).fork

    def _spliced(
        self, history: Sequence[Message], new: Sequence[Message], tools: Tools, ids: Ids, finish: FinishReason
    ) -> _Spliced:
        after = self.chat.write([*history, *new], tools, asks=True)
        asked = self.chat.write(history[:-1], tools, asks=True)
        words = self.chat.text_of(ids)
        end = self.chat.end_of(words)
        for held in (words.removesuffix(end), words.removesuffix(end).strip()):
            if after.startswith(asked + held + end):
                # The template writes all that is held, letter by letter, perhaps without the spaces around it.
                return _Spliced(after[len(asked + held + end) :])
        before = self.chat.write(history, tools, asks=False)
        if not after.startswith(before):
            return _Spliced(after, _cause(history, before, after))
        earlier = self.chat.write(history[:-1], tools, asks=False)
        if not after.startswith((asked, earlier)):
            return _Spliced(after, _cause(history, asked, after))
        thinking = _thinking(words.removesuffix(end), self.chat.opens_thinking)
        if thinking and thinking not in before[num_shared(earlier, before) :]:
            return _Spliced(after, "thinking")
        close = self._close(history, tools, before, words, finish)
        return _Spliced(close + after[len(before) :])

    def _close(self, history: Sequence[Message], tools: Tools, before: str, words: str, finish: FinishReason) -> str:
        """Return what the template writes behind the last turn's words, without the end token that it has."""
        close, end = self.chat.close_behind(history[:-1], tools), self.chat.end_of(words)
        if not before.endswith(close):
            # Some templates end a turn that calls in another way than others.
            bare = before.rstrip()
            close = self.chat.end_of(bare) + before[len(bare) :]
        if finish == "length" or not end:
            return close
        if end in close:
            return close[close.index(end) + len(end) :]
        return close

    def _behind_any(
        self, history: Sequence[Message], new: Sequence[Message], tools: Tools, ids: Ids, finish: FinishReason
    ) -> str:
        """Return what the template writes behind the last turn, whatever it makes of the history."""
        last = self.chat.without_thinking(history[-1])
        calls = tuple(replace(c, arguments={}) for c in last.calls)
        words = self.chat.text_of(ids)
        end = self.chat.end_of(words)
        for content in (WORDS[0], ""):
            shown = [*history[:-1], replace(last, content=content, calls=calls)]
            after = self.chat.write([*shown, *new], tools, asks=True)
            before = self.chat.write(shown, tools, asks=False)
            if after.startswith(before):
                return self._close(history, tools, before, words, finish) + after[len(before) :]
            at = after.rfind(content) if content else -1
            behind = after[at + len(content) :] if at >= 0 else ""
            if behind and finish == "stop" and end and end in behind:
                return behind[behind.index(end) + len(end) :]
            if behind and not calls:
                return behind
        roles = ", ".join(m.role for m in new)
        raise DataError(
            f"the chat template rewrites the turn before messages of {roles}, and nothing shows where it ends; set "
            "template.history: template"
        )


def _places(history: Sequence[Message], num: int) -> Sequence[int]:
    """Return the indices of the policy's last `num` messages."""
    places = [n for n, m in enumerate(history) if m.role == "assistant" and not isinstance(m, NotFromPolicy)]
    return places[len(places) - num :]


def _split(message: Message, text: str, is_open: bool) -> Message:
    """Return the message with thinking at its beginning moved to `thinking`."""
    content = message.content
    begins = content.lstrip().startswith(OPEN)
    if not is_open and not begins:
        return message
    inside = content if is_open else content.lstrip()[len(OPEN) :]
    thinking, close, words = inside.partition(CLOSE)
    return replace(message, thinking=thinking.strip("\n") or None, content=words.lstrip("\n") if close else "")


def _cause(history: Sequence[Message], before: str, after: str) -> str:
    """Return the reason for which the template rewrites the history."""
    thoughts = [m.thinking for m in history if m.thinking]
    lost = any(thought in before and thought not in after for thought in thoughts)
    return "thinking" if lost or before.count(CLOSE) > after.count(CLOSE) else "history"


def _thinking(words: str, is_open: bool) -> str:
    """Return the thinking of a turn's text, without the spaces around it."""
    inside = words if is_open else words.partition(OPEN)[2]
    return inside.partition(CLOSE)[0].strip()
