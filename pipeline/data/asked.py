"""The question of a row, the message around it, and the reference of its answers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from string import ascii_uppercase
from typing import Any, NamedTuple

from verizero.pipeline.config.data import Source
from verizero.pipeline.data.columns import pick, pick_optional


class Asked(NamedTuple):
    """The question alone, the user's message where that is more, and the reference."""

    question: str
    message: str | None
    reference: Any


def asked_of(row: Mapping[str, Any], source: Source, question: str, answer: Any) -> Asked:
    """Return what the row asks, with its context after the question. Raises: DataError naming a column that is missing.

    Choices are in the message alone, so that overlap with other data is measured on the question.
    """
    columns = source.mapping
    extra = [_as_text(x) for x in (pick_optional(row, c) for c in columns.context) if x is not None]
    message = question = "\n\n".join([question, *extra])
    if columns.wrong_answers:
        texts = [str(answer), *(str(pick(row, column)).strip() for column in columns.wrong_answers)]
        # By the texts, so that any seed and any other rows give the same order, in which the right one has no place.
        texts.sort(key=lambda text: hashlib.sha256(f"{question}\n{text}".encode("utf-8", "surrogatepass")).digest())
        letters = dict(zip(ascii_uppercase, texts, strict=False))
        message += "\n\n" + "\n".join(f"{letter}) {text}" for letter, text in letters.items())
        answer = {"answer": ascii_uppercase[texts.index(str(answer))], "choices": letters}
    if source.prompt is not None:
        message = source.prompt.replace("{question}", message)  # not str.format: a question may have braces of its own
    of_row = pick_optional(row, columns.asked)
    message = message if of_row is None else str(of_row)
    return Asked(question, None if message == question else message, answer)


def _as_text(value: Any) -> str:
    """Return the text of a column of context; a list of texts is one of lines."""
    is_lines = isinstance(value, list) and all(isinstance(line, str) for line in value)
    return "\n".join(value) if is_lines else str(value)
