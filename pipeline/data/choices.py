"""Questions with choices: which columns have them, their letters, and the letter of the right one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from verizero.pipeline.errors import DataError
from verizero.pipeline.host.disk import parse_json

LISTS = ("choices", "options")
ANSWERS = (
    "answer", "answerKey", "answer_key", "answer_idx", "answer_index", "correct", "correct_answer", "correct_option",
    "target", "label", "cop",
)  # fmt: skip
OF_LETTER = re.compile(r"(?:(?i:option|choice|opt?)[ _]?)([A-Ja-j])|([A-J])")
"""A column with the text of one choice: A, option_a, "Option A", opa."""


def choices_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> dict[str, str] | None:
    """Return the columns of the answer and of the choices by key, as `lettered` reads them; None if there are none."""
    by_letter = {(m[1] or m[2]).upper(): name for name in columns if (m := OF_LETTER.fullmatch(name))}
    is_whole = len(by_letter) > 1 and set(by_letter) == set(ascii_uppercase[: len(by_letter)])
    of_texts = next(({"choices": name} for name in LISTS if name in columns), by_letter if is_whole else None)
    for name in ANSWERS if of_texts else ():
        keys = {"answer": name, **(of_texts or {})}
        if name in columns and sum(_is_lettered(row, keys) for row in rows) >= len(rows) / 2:
            return keys
    return None


def has_choices(keys: set[str]) -> bool:
    """True for the keys of an object with an answer and choices: a list of them, or each by its letter."""
    return "answer" in keys and (keys == {"answer", "choices"} or keys - {"answer"} >= {"A", "B"})


def lettered(value: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Return the letter of the right choice, and the texts by letter, of {answer, choices} or {answer, A, B, ...}.

    Choices are a list, an object by letter, {text: [...], label: [...]}, or JSON of these; the answer is a letter or
    label, a text, or an index from 0. Raises: DataError.
    """
    labels, texts = _listed(value.get("choices", {key: text for key, text in value.items() if key != "answer"}))
    letters = ascii_uppercase[: len(texts)]
    if not 2 <= len(texts) <= len(ascii_uppercase):
        raise DataError(f"a question needs 2 to {len(ascii_uppercase)} choices, got {len(texts)}")
    own = [
        re.fullmatch(rf"\(?{letter}[).:]\s*(.+)", str(text), re.DOTALL)
        for letter, text in zip(letters, texts, strict=True)
    ]
    shown = [str(text) if not all(own) else str(m and m[1]) for text, m in zip(texts, own, strict=True)]
    answer = value.get("answer")
    name = str(answer).strip().strip("()[]. ")
    as_label = [i for i, label in enumerate(labels or letters) if str(label).strip().upper() == name.upper()]
    as_text = [i for i, text in enumerate(texts) if text == answer and type(text) is type(answer)]
    places = (as_label or as_text) if labels else (as_text or as_label)
    if not places and re.fullmatch(r"\d+", name) and not isinstance(answer, bool) and int(name) < len(texts):
        places = [int(name)]
    if len(places) != 1:
        raise DataError(
            f"the answer {answer!r:.40} is not one letter, text or index from 0 of the {len(texts)} choices"
        )
    return letters[places[0]], dict(zip(letters, shown, strict=True))


def shows(question: str, texts: Mapping[str, str]) -> bool:
    """True if the question has each choice after its letter."""
    return all(re.search(rf"(?<!\w)\(?{letter}[).:]\s*{re.escape(text)}", question) for letter, text in texts.items())


def _listed(value: Any) -> tuple[list[Any], list[Any]]:
    """Return the labels of choices, if they have some, and the choices."""
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except (ValueError, RecursionError) as exc:
            raise DataError(f"choices must be a list or an object, or JSON of one, got {value!r:.80}") from exc
    if isinstance(value, Mapping) and isinstance(value.get("text"), list):
        labels = value.get("label")
        return (labels if isinstance(labels, list) and len(labels) == len(value["text"]) else []), value["text"]
    if isinstance(value, Mapping):
        return list(value), list(value.values())
    if not isinstance(value, list):
        raise DataError(f"choices must be a list or an object, got {value!r:.80}")
    return [], value


def _is_lettered(row: Mapping[str, Any], keys: Mapping[str, str]) -> bool:
    try:
        lettered({key: row[name] for key, name in keys.items() if name in row})
    except DataError:
        return False
    return True
