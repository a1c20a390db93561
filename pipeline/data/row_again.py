"""A conversation that a template has rewritten, as a new row in which unchanged turns keep their sampled tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from verizero.pipeline.data.chat_text import ChatText
from verizero.pipeline.data.spoken import CLOSE, OPEN
from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.environments.conversing import Piece
from verizero.pipeline.rows import num_shared
from verizero.pipeline.types import Message

Ids = tuple[int, ...]


def row_again(
    chat: ChatText,
    messages: Sequence[Message],
    tools: Sequence[ToolSchema],
    sampled: Sequence[Ids],
    places: Sequence[int],
) -> tuple[Piece, ...]:
    """Return the whole conversation, ready for the next turn, in pieces. `places`: of the policy's turns in it.

    A turn whose words the template writes as they were sampled keeps its tokens; the others are observed, in the
    template's words.
    """
    words = [chat.text_of(ids) for ids in sampled]
    # Nothing but a turn of the policy looks like the beginning of one.
    shown = [m if n in places else chat.inert_message(m) for n, m in enumerate(messages)]
    text = chat.write(shown, tools, asks=True)
    kept = _kept(chat, text, words)
    # The marks of its thinking stay whole: templates look for them.
    own = {n: chat.inert_message(messages[n], (OPEN, CLOSE)) for k, n in enumerate(places) if k not in kept}
    cut = [own.get(n, m) for n, m in enumerate(shown)]
    if cut != shown:
        text = chat.write(cut, tools, asks=True)
        kept = _kept(chat, text, words)
    pieces, at = [], 0
    for k, (start, end) in kept.items():
        pieces += [Piece(chat.ids(text[at:start])), Piece(tuple(sampled[k]), turn=k)]
        at = end
    return (*pieces, Piece(chat.ids(text[at:])))


def num_new(
    chat: ChatText, history: Sequence[Message], new: Sequence[Message], tools: Sequence[ToolSchema], ids: Ids
) -> int:
    """Return the number of the last of `ids`, the end of a prompt after `new`, that the new messages bring.

    They begin with the first word of the first new message. 0 where nothing shows where that is.
    """
    content = new[0].content
    at = len(content) - len(content.lstrip())  # behind spaces, which a template may strip
    letter = "B" if content[at:].startswith("A") else "A"
    other = replace(new[0], content=content[:at] + letter + content[at:])
    text = chat.write([*history, *new], tools, asks=True)
    changed = chat.write([*history, other, *new[1:]], tools, asks=True)
    begin = num_shared(text, changed)
    if changed != text[:begin] + letter + text[begin:]:  # the template reads more than it shows
        return 0
    # Tokens of the whole may span the beginning, so only those that both have at their ends count.
    return num_shared(chat.ids(text[begin:])[::-1], ids[::-1])


def _kept(chat: ChatText, text: str, words: Sequence[str]) -> Mapping[int, tuple[int, int]]:
    """Return where the text has the turns that it writes as they were: turn -> (begin, end)."""
    kept: dict[int, tuple[int, int]] = {}
    at = 0
    for k, spoken in enumerate(words):
        end = chat.end_of(spoken)
        # A template may end a turn in another way than the policy did, and a turn that was cut has no end.
        ways = [spoken, spoken.removesuffix(end) + chat.close] if end else [spoken + chat.close]
        for way in ways:
            start = text.find(chat.generation + way, at)
            if chat.generation and start >= 0:
                begin = start + len(chat.generation)
                at = begin + len(spoken if way == spoken else spoken.removesuffix(end))
                kept[k] = (begin, at)
                break
    return kept
