"""The marks that a tokenizer's chat template writes around turns, and those of them that are tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from verizero.pipeline.commands.preflight.local_parts import LocalParts
from verizero.pipeline.config.template import Template
from verizero.pipeline.data.chat_text import ChatText
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Message

MARK = re.compile(r"<\|[^<>|\s]{1,40}\|>|<(?:start|end)_of_\w{1,20}>|<\uff5c[^<>\uff5c]{1,40}\uff5c>")
"""The names of marks in published templates: <|im_end|>, <end_of_turn>, and the wide bars of DeepSeek's."""
WORDS = ("word 0", "term 1", "word 2")


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of a chat template.

    Example: Marks(("<|im_end|>", "<|im_start|>"), ("<|im_end|>",), ())
    """

    all: tuple[str, ...]
    ends: tuple[str, ...]
    """Tokens in the text that the template writes behind an assistant's words."""
    unknown: tuple[str, ...]
    """Marks that the tokenizer has no token for: it writes them in letters."""

    @property
    def of_turns(self) -> tuple[str, ...]:
        """The marks around turns. Tags of thinking and calls are none: many questions ask for them by name."""
        return tuple(name for name in self.all if name in self.ends or MARK.fullmatch(name))


def marks_of(recipe: LocalParts) -> Marks:
    """Return the marks of the tokenizer's chat template. Raises: DataError if it refuses a conversation."""
    template = recipe.config.data.template
    chat = ChatText(Renderer(recipe.tokenizer, template if template.name == "chat" else Template(name="chat")))
    question, answer, again = WORDS
    talk = [Message("user", question), Message("assistant", answer), Message("user", again)]
    text = chat.write(talk, (), asks=True)
    known = chat.foreign_text.added
    written = {*MARK.findall(text), *(name for name in known if len(name) > 1 and name in text and not name.isspace())}
    unknown = sorted(name for name in written if not is_token(recipe.tokenizer, name))
    return Marks(
        tuple(sorted(written)), tuple(n for n in sorted(known) if n.strip() and n in chat.close), tuple(unknown)
    )


def is_token(tokenizer: Any, name: str) -> bool:
    """True if the tokenizer writes the name as one token of its own."""
    ids = tokenizer(name, add_special_tokens=False)["input_ids"]
    return len(ids) == 1 and ids[0] != tokenizer.unk_token_id


def try_marks(recipe: LocalParts) -> Marks | None:
    """Return the marks of the chat template; None if there is none, or if it refuses a conversation."""
    if not recipe.tokenizer.chat_template:
        return None
    try:
        return marks_of(recipe)
    except DataError:
        return None
