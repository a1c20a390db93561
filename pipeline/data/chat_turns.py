"""Conversations as tokens by a chat template: what was sampled stays, and what the template adds is spliced in.

The template is only asked for text. The next prompt is what was held, and the tokens of the text that the template
writes behind it; a text that it writes differently now, e.g. without earlier thinking, begins a new row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from verizero.pipeline.data.chat_text import ChatText, whole
from verizero.pipeline.data.policy_text import CLOSE, OPEN, after_thinking, read_turn, text_of_turn
from verizero.pipeline.data.render import Ids, Renderer
from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.environments.conversing import CallForm, NextPrompt, NotFromPolicy, PromptPiece, ReadTurn
from verizero.pipeline.errors import DataError
from verizero.pipeline.rows import num_shared
from verizero.pipeline.types import FinishReason, Message, Prompt

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
        """Return the first prompt's tokens; of a question alone, those of a single response. Raises: DataError."""
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
        if finish_reason == "stop":
            text = text.removesuffix(self.renderer.closing[0])
        result = read_turn(self.form, text, finish_reason, turn, tools, is_open)
        message = result.message
        if self.chat.splits_thinking:
            message = _split(message, text, is_open)
        return replace(result, message=whole(message))

    def write(self, message: Message, tools: Tools) -> Ids:
        """Return the tokens of a policy that says this message, with the turn's end. Raises: DataError."""
        content, thinking, at = message.content, message.thinking, 0
        begins = content.lstrip().startswith(OPEN)
        if thinking is None and (begins or (self.chat.opens_thinking and CLOSE in content)):
            at = after_thinking(content, not begins)
        thought = self.chat.inert(content[:at], (OPEN, CLOSE))
        if thinking is not None:
            thought = f"{OPEN}\n{self.chat.inert(thinking)}{thinking and chr(10)}{CLOSE}\n\n"
        inert = replace(message, content=self.chat.inert(content[at:]), thinking=None)
        text = self.renderer.continued(thought + text_of_turn(self.form, inert, tools))
        before, end = self.renderer.closing
        return (*self.chat.ids(text + before), end)

    def extend(
        self,
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Tools,
        sampled: Sequence[Ids],
        finish_reason: FinishReason,
    ) -> NextPrompt:
        """Return the text that the template writes behind the last turn, in tokens; or a new row.

        Raises: DataError if the template refuses the conversation, or shows nothing of the new messages.
        """
        places = _places(history, len(sampled))
        history = [m if n in places else self.chat.of_others(m) for n, m in enumerate(history)]
        new = [self.chat.of_others(m) for m in new]
        spliced = self._spliced(history, new, tools, sampled[-1], finish_reason)
        if spliced.fork is not None:
            pieces = rewritten_row(self.chat, [*history, *new], tools, sampled, places)
            return NextPrompt(pieces, spliced.fork)
        ids = self.chat.ids(spliced.text)
        if not ids:
            roles = ", ".join(m.role for m in new)
            raise DataError(f"the chat template writes nothing for messages of {roles}; use another template")
        return NextPrompt((PromptPiece(ids),))

    def rewritten(
        self, history: Sequence[Message], new: Sequence[Message], tools: Tools, ids: Ids, finish_reason: FinishReason
    ) -> str | None:
        """Return why the template rewrites the history before `new`, else None. `ids`: the tokens of the last turn."""
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
        inside = words.removesuffix(end)
        inside = inside if self.chat.opens_thinking else inside.partition(OPEN)[2]
        thinking = inside.partition(CLOSE)[0].strip()
        if thinking and thinking not in before[num_shared(earlier, before) :]:
            return _Spliced(after, "thinking")
        return _Spliced(self._rest(history, tools, before, words, finish, after[len(before) :]))

    def _rest(
        self, history: Sequence[Message], tools: Tools, before: str, words: str, finish: FinishReason, new: str
    ) -> str:
        """Return what the template writes behind the last turn's words and then, without the end token that they have.

        Some templates write that token only where the next turn begins.
        """
        close, end = self.chat.close_behind(history[:-1], tools), self.chat.end_of(words)
        if not before.endswith(close):
            # Some templates end a turn that calls in another way than others.
            bare = before.rstrip()
            close = self.chat.end_of(bare) + before[len(bare) :]
        if finish == "length" or not end:
            return close + new
        if end in close:
            return close[close.index(end) + len(end) :] + new
        return close + (new if close else new.removeprefix(end))


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


def rewritten_row(
    chat: ChatText,
    messages: Sequence[Message],
    tools: Sequence[ToolSchema],
    sampled: Sequence[Ids],
    turn_indices: Sequence[int],
) -> tuple[PromptPiece, ...]:
    """Return the whole conversation, ready for the next turn, in pieces. `turn_indices`: of the policy's turns in it.

    A turn whose words the template writes as they were sampled keeps its tokens; the others are observed, in the
    template's words.
    """
    words = [chat.text_of(ids) for ids in sampled]
    # Nothing but a turn of the policy looks like the beginning of one.
    shown = [m if n in turn_indices else chat.inert_message(m) for n, m in enumerate(messages)]
    text = chat.write(shown, tools, asks=True)
    unchanged = _unchanged_turns(chat, text, words)
    # The marks of its thinking stay whole: templates look for them.
    turn_ids = {
        n: chat.inert_message(messages[n], (OPEN, CLOSE)) for k, n in enumerate(turn_indices) if k not in unchanged
    }
    cut = [turn_ids.get(n, m) for n, m in enumerate(shown)]
    if cut != shown:
        text = chat.write(cut, tools, asks=True)
        unchanged = _unchanged_turns(chat, text, words)
    pieces, index = [], 0
    for k, (start, end) in unchanged.items():
        pieces += [PromptPiece(chat.ids(text[index:start])), PromptPiece(tuple(sampled[k]), turn=k)]
        index = end
    return (*pieces, PromptPiece(chat.ids(text[index:])))


def _unchanged_turns(chat: ChatText, text: str, words: Sequence[str]) -> Mapping[int, tuple[int, int]]:
    """Return turn -> (begin, end) in the text, for turns that the template has not changed."""
    unchanged: dict[int, tuple[int, int]] = {}
    index = 0
    for k, turn in enumerate(words):
        end = chat.end_of(turn)
        # A template may end a turn in another way than the policy did, and a turn that was cut has no end.
        ways = [turn, turn.removesuffix(end) + chat.close] if end else [turn + chat.close]
        for way in ways:
            start = text.find(chat.generation + way, index)
            if chat.generation and start >= 0:
                begin = start + len(chat.generation)
                index = begin + len(turn if way == turn else turn.removesuffix(end))
                unchanged[k] = (begin, index)
                break
    return unchanged
