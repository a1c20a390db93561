"""Make a new row of a conversation that a template has rewritten: unchanged turns keep their sampled tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from verizero.pipeline.data.chat_text import ChatText
from verizero.pipeline.data.policy_text import CLOSE, OPEN
from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.environments.conversing import PromptPiece
from verizero.pipeline.rows import num_shared
from verizero.pipeline.types import Message

Ids = tuple[int, ...]


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


def num_new(
    chat: ChatText, history: Sequence[Message], new: Sequence[Message], tools: Sequence[ToolSchema], ids: Ids
) -> int:
    """Return the number of the last of `ids`, the end of a prompt after `new`, that the new messages bring.

    They begin with the first word of the first new message. 0 where nothing shows where that is.
    """
    content = new[0].content
    index = len(content) - len(content.lstrip())  # behind spaces, which a template may strip
    letter = "B" if content[index:].startswith("A") else "A"
    other = replace(new[0], content=content[:index] + letter + content[index:])
    text = chat.write([*history, *new], tools, asks=True)
    changed = chat.write([*history, other, *new[1:]], tools, asks=True)
    begin = num_shared(text, changed)
    if changed != text[:begin] + letter + text[begin:]:  # the template reads more than it shows
        return 0
    # Tokens of the whole may span the beginning, so only those that both have at their ends count.
    return num_shared(chat.ids(text[begin:])[::-1], ids[::-1])


def _unchanged_turns(chat: ChatText, text: str, words: Sequence[str]) -> Mapping[int, tuple[int, int]]:
    """Return turn -> (begin, end) in the text, for turns that the template has not changed."""
    unchanged: dict[int, tuple[int, int]] = {}
    index = 0
    for k, text_of_turn in enumerate(words):
        end = chat.end_of(text_of_turn)
        # A template may end a turn in another way than the policy did, and a turn that was cut has no end.
        ways = [text_of_turn, text_of_turn.removesuffix(end) + chat.close] if end else [text_of_turn + chat.close]
        for way in ways:
            start = text.find(chat.generation + way, index)
            if chat.generation and start >= 0:
                begin = start + len(chat.generation)
                index = begin + len(text_of_turn if way == text_of_turn else text_of_turn.removesuffix(end))
                unchanged[k] = (begin, index)
                break
    return unchanged
