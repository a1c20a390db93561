"""Encode text of tools, files and people: it never becomes a special token or an unknown character."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from verizero.pipeline.data.tokenizer import unknown_characters

REPLACEMENT = "?"
"""Written in place of an unknown character, if the tokenizer knows this one; else nothing is."""
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a UTF-16 pair, alone: UTF-8 cannot encode it."""


class ForeignText:
    """Encodes text that the policy did not write. The name of a special token in it is encoded letter by letter."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer` is a Hugging Face tokenizer."""
        self.tokenizer = tokenizer
        self.added = {str(token): int(i) for i, token in tokenizer.added_tokens_decoder.items()}
        """Name -> id of the tokens besides the vocabulary, e.g. the end of a turn."""
        # Some tokenizers add runs of spaces and single characters to the vocabulary in this way: those are text.
        marks = {name: i for name, i in self.added.items() if len(name) > 1 and not name.isspace()}
        self._special = frozenset(marks.values())
        # Looks ahead, so that marks which overlap are all found.
        self._mark = re.compile(f"(?={'|'.join(map(re.escape, sorted(marks)))})") if marks else None
        self._knows_instead = not unknown_characters(tokenizer, REPLACEMENT)

    def known(self, text: str) -> str:
        """Return the text with unknown characters replaced or removed."""
        if not text.isascii():
            text = LONE_SURROGATE.sub("\ufffd", text)
        unknown = unknown_characters(self.tokenizer, text)
        if not unknown:
            return text
        return text.translate(dict.fromkeys(map(ord, unknown), REPLACEMENT if self._knows_instead else None))

    def has_marks(self, text: str) -> bool:
        """Return True if the text has the name of a special token."""
        return self._mark is not None and self._mark.search(text) is not None

    def cut(self, text: str, cut: str, but: tuple[str, ...] = ()) -> str:
        """Return the text with `cut` behind the first letter of each special token's name in it, except in `but`."""
        if self._mark is None or not self.has_marks(text):
            return text
        return cut.join(self._parts(self._mark, text, but))

    def ids(self, text: str) -> tuple[int, ...]:
        """Return the tokens of the text, without special tokens."""
        if not text:
            return ()
        ids = self._encoded(text)
        if self._mark is not None and not self._special.isdisjoint(ids):
            # Tokens that are added but not "special" are found all the same. Cut within their names, they are not.
            ids = [token for part in self._parts(self._mark, text) for token in self._encoded(part)]
            ids = [token for token in ids if token not in self._special]
        return tuple(ids)

    def _parts(self, mark: re.Pattern[str], text: str, but: tuple[str, ...] = ()) -> list[str]:
        marks = [m.start() + 1 for m in mark.finditer(text) if not (but and text.startswith(but, m.start()))]
        return [text[a:b] for a, b in pairwise([0, *marks, len(text)]) if a < b]

    def _encoded(self, text: str) -> Sequence[int]:
        encoded = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)
        return [int(i) for i in encoded["input_ids"]]
