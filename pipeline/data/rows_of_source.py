"""Rows of a source: values of their columns, question, choices and reference, verifier, and counts of skipped rows."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from verizero.pipeline import registry
from verizero.pipeline.config.choices import ENVIRONMENT, VerifierChoice, is_path
from verizero.pipeline.config.data import Column, Source
from verizero.pipeline.config.pairs import PairSource
from verizero.pipeline.data.conversations import as_value
from verizero.pipeline.data.source_files import PlacedRow, cell_value, is_missing, read_file, read_hub
from verizero.pipeline.errors import ConfigError, DataError, UnknownName
from verizero.pipeline.host.disk import parse_json
from verizero.pipeline.seeds import stream
from verizero.pipeline.types import Prompt
from verizero.verifiers.answer.parts import last_box
from verizero.verifiers.base import load

T = TypeVar("T")


def rows_of(source: Source | PairSource, base_dir: Path) -> Iterator[PlacedRow]:
    """Yield the rows of a source's file or hub data set, with their places. Raises: DataError."""
    if source.file is not None:
        return read_file(base_dir / source.file, source.file)
    assert source.hub is not None
    return read_hub(source.hub, base_dir)


@dataclass(slots=True)
class SourceCounts:
    """Counts of one source's rows. `skipped` counts by reason; `examples` has the first row of each reason."""

    label: str
    num_read: int = 0
    num_loaded: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)
    what: str = "prompts"
    left_out: list[tuple[Any, str]] = field(default_factory=list)
    """(row, reason) of rows that are written to a file for people."""

    def skip(self, reason: str, example: str) -> None:
        """Count a skipped row."""
        self.skipped[reason] = self.skipped.get(reason, 0) + 1
        self.examples.setdefault(reason, example)

    def leave_out(self, reason: str, example: str, row: Any, why: str) -> None:
        """Count a skipped row, and keep it for people."""
        self.skip(reason, example)
        self.left_out.append((row, why))

    def __str__(self) -> str:
        skips = [f"{n} {reason} (first: {self.examples[reason]})" for reason, n in self.skipped.items()]
        text = f"{self.label}: {self.num_loaded} {self.what} of {self.num_read} rows read"
        return text + (f"; skipped {', '.join(skips)}" if skips else "")


def good_rows(
    rows: Iterable[PlacedRow],
    counts: SourceCounts,
    on_bad_row: Literal["error", "skip"],
    make: Callable[[Mapping[str, Any], int], T],
) -> Iterator[tuple[str, Mapping[str, Any], T]]:
    """Yield (place, row, `make(row, number)`) of good rows. Raises: DataError for a bad one that is not skipped."""
    for place, number, row in rows:
        counts.num_read += 1
        try:
            if isinstance(row, DataError):
                raise row
            made = make(row, number)
        except DataError as exc:
            # Errors of reading name the place already.
            problem = str(exc) if str(exc).startswith(place) else f"{place}: {exc}"
            if on_bad_row == "error":
                raise DataError(f"{problem}; correct the row or the mapping, or set on_bad_row: skip") from exc
            counts.leave_out("bad rows", problem, str(exc) if isinstance(row, DataError) else row, problem)
            continue
        yield place, row, made


def taken(
    items: Iterator[T], source: Source | PairSource, seed: int, part: Callable[[list[T]], list[T]] | None = None
) -> list[T]:
    """Return the items of a source up to its limit; of shuffled ones, or those of a part, a share of all."""
    if not source.shuffle and part is None:
        return list(islice(items, source.limit))  # the rows after them are never read
    every = list(items)
    if source.shuffle:
        stream(seed, "data", "shuffle", source.label).shuffle(every)
    return (every if part is None else part(every))[: source.limit]


def row_of(prompt: Prompt) -> dict[str, Any]:
    """Return the prompt as a row, as in a user's file."""
    row = {
        "id": prompt.id,
        "question": prompt.question,
        "answer": prompt.reference,
        "domain": prompt.domain,
        "verifier": prompt.verifier,
    }
    extra = {
        "demonstration": as_value(prompt.demonstration),
        "system": prompt.system,
        "environment": prompt.environment,
        "asked": prompt.message,
    }
    return row | {k: v for k, v in extra.items() if v is not None}


class Missing(DataError):
    """A row has no value for the column."""


def pick(row: Mapping[str, Any], column: Column) -> Any:
    """Return the row's value for the column. A part of a text is stripped of spaces, a whole text is not.

    Raises: Missing if the column, the key or the mark is not there, or the value `is_missing`; DataError if it cannot
    be read. Both name the column.
    """
    if column.columns:
        return _object(row, column.columns)
    value = _step_column(row, column.column)
    if column.then:
        values = (value, *(_step_column(row, name) for name in column.then))
        value = "".join(str(v) for v in values if v is not None)
    if column.parse or column.key is not None or column.after or column.before or column.boxed or column.replace:
        value = _part(value, column, f"column {column.column!r}")
    if is_missing(value):
        raise Missing(f"column {column.column!r} is empty")
    if isinstance(value, float) and math.isinf(value):
        raise DataError(f"column {column.column!r} is {value}, which is no number")
    return value


def _part(value: Any, column: Column, name: str) -> Any:
    """Return the part of the value that `column` asks for."""
    if column.parse is not None and isinstance(value, str):
        _require(value.strip(), f"{name} is empty")
        try:
            value = parse_json(value)
        except (ValueError, RecursionError) as exc:
            raise DataError(f"{name} is not JSON ({exc}), got {value!r:.80}") from exc
    if column.key is not None:
        value = _step(value, column.key, name)
    if column.after is not None or column.before is not None or column.boxed or column.replace:
        if not isinstance(value, str):
            raise DataError(f"{name} must be text to take a part of it, got {type(value).__name__}")
        value = _cut(value, column, name)
    return value


def _object(row: Mapping[str, Any], columns: Mapping[str, Column]) -> dict[str, Any]:
    """Return the values of several columns. Those that the row lacks are left out; one must be there."""
    values = {key: pick_optional(row, column) for key, column in columns.items()}
    _require(
        any(v is not None for v in values.values()),
        f"none of the columns {', '.join(c.column for c in columns.values())} is there; columns there: "
        f"{', '.join(map(repr, row)) or 'none'}",
    )
    return {key: value for key, value in values.items() if value is not None}


def pick_optional(row: Mapping[str, Any], column: Column | None) -> Any:
    """Return the row's value, or None if it is missing. Raises: DataError if it cannot be parsed."""
    if column is None:
        return None
    if column.column and column.column not in row and column.column.partition(".")[0] not in row:
        return None  # most rows lack most optional columns
    try:
        return pick(row, column)
    except Missing:
        return None


def _cut(text: str, column: Column, name: str) -> str:
    if column.after is not None:
        _require(column.after in text, f"{name} has no {column.after!r}, got {text!r:.80}")
        # The last mark, as answers come last: "#### 5" ends the rows of GSM8K.
        text = text.rpartition(column.after)[2]
    if column.before is not None:
        _require(column.before in text, f"{name} has no {column.before!r}, got {text!r:.80}")
        text = text.partition(column.before)[0]
    if column.boxed:
        box = last_box(text)  # as a verifier reads a response, so that equal texts have equal answers
        if box.text is None:
            raise Missing(f"{name} has no closed \\boxed{{...}}, got {text[-80:]!r}")
        text = box.text
    for pattern, replacement in column.replace:
        text = re.sub(pattern, replacement, text)
    return text.strip()


def _step_column(row: Mapping[str, Any], path: str) -> Any:
    """Return the value at `path`. A column whose name has these dots comes first."""
    first, _, rest = (path, "", "") if path in row else path.partition(".")
    if first not in row:
        raise Missing(f"there is no column {first!r}; columns there: {', '.join(map(repr, row)) or 'none'}")
    value = _step(row[first], rest, f"column {first!r}") if rest else row[first]
    try:
        return cell_value(value)
    except (TypeError, ValueError) as exc:
        raise DataError(f"column {path!r} cannot be read: {exc}") from exc


def _step(value: Any, path: str, name: str) -> Any:
    for key in path.split("."):
        if isinstance(value, Mapping):
            _require(key in value, f"{name} has no key {key!r}; keys there: {', '.join(map(repr, value)) or 'none'}")
            value = value[key]
        elif isinstance(value, list) and key.isdigit():
            _require(int(key) < len(value), f"{name} has no item {key}, only {len(value)} items")
            value = value[int(key)]
        else:
            raise Missing(f"{name} is {value!r:.80}, which has no key {key!r}")
    return value


def _require(condition: object, message: str) -> None:
    if not condition:
        raise Missing(message)


def asked_of(
    row: Mapping[str, Any], source: Source, question: str, answer: Any, verifier: str
) -> tuple[str, str | None, Any]:
    """Return question, message and reference of a row: the question alone, the user's message where that is more.

    The context follows the question. Raises: DataError naming a column that is missing.

    Choices are in the message alone, so that overlap with other data is measured on the question. The reference of
    columns with choices is the letter of the right one, for the verifier choice with the texts.
    """
    columns = source.mapping
    message = question = with_context(question, row, columns.context)
    if columns.wrong_answers:
        texts = [str(answer), *(str(pick(row, column)).strip() for column in columns.wrong_answers)]
        # By the texts, so that any seed and any other rows give the same order, in which the right one has no place.
        texts.sort(key=lambda text: hashlib.sha256(f"{question}\n{text}".encode("utf-8", "surrogatepass")).digest())
        letters = dict(zip(ascii_uppercase, texts, strict=False))
        message += _as_lines(letters)
        answer = {"answer": ascii_uppercase[texts.index(str(answer))], "choices": letters}
    elif answer is not None and columns.answer is not None and has_choices(set(columns.answer.columns)):
        letter, letters = lettered(answer)
        message += "" if shows(question, letters) else _as_lines(letters)
        answer = {"answer": letter, "choices": letters} if verifier.partition("{")[0] == "choice" else letter
    if source.prompt is not None:
        message = source.prompt.replace("{question}", message)  # not str.format: a question may have braces of its own
    of_row = pick_optional(row, columns.asked)
    message = message if of_row is None else str(of_row)
    return question, None if message == question else message, answer


def _as_lines(choices: Mapping[str, str]) -> str:
    return "\n\n" + "\n".join(f"{letter}) {text}" for letter, text in choices.items())


def with_context(question: str, row: Mapping[str, Any], columns: Sequence[Column]) -> str:
    """Return the question, and after it the text of the other columns that are there."""
    values = (pick_optional(row, column) for column in columns)
    return "\n\n".join([question, *(_as_text(value) for value in values if value is not None)])


def _as_text(value: Any) -> str:
    """Return the text of a column of context; a list of texts is one of lines."""
    is_lines = isinstance(value, list) and all(isinstance(line, str) for line in value)
    return "\n".join(value) if is_lines else str(value)


def verifier_key(value: Any) -> str | None:
    """Return a row's verifier as one text: a name, or {"name", "params"?}. Raises: DataError naming the field."""
    if not isinstance(value, Mapping):
        return None if value is None else str(value)
    try:
        return VerifierChoice.model_validate(dict(value)).key
    except (ValidationError, ConfigError) as exc:
        text = str(exc) if isinstance(exc, ConfigError) else exc.errors()[0]["msg"].removeprefix("Value error, ")
        raise DataError(f"the row's verifier {dict(value)!r:.120}: {text}") from exc


def gradable(verifier: str, reference: Any) -> Any:
    """Return the reference. Raises: DataError if its verifier, a name with or without parameters, cannot read it."""
    reads = _reader(verifier.partition("{")[0])
    if reads is not None:
        try:
            reads(reference)
        except (ValueError, RecursionError) as exc:  # an integer that is too long for a message, for example
            raise DataError(f"{verifier.partition('{')[0]} cannot read the reference: {exc}") from exc
    return reference


@lru_cache(maxsize=256)  # the registry searches folders and entry points
def unknown_verifier(key: str) -> str:
    """Return "" for a known name or a function of a file, with parameters or without; else what is wrong with it."""
    name = key.partition("{")[0]
    if name == ENVIRONMENT or is_path(name) or name in registry.names("verifiers"):
        return ""
    try:
        registry.find("verifiers", name)
    except UnknownName as exc:
        return str(exc)
    return f"{name!r} is no verifier"


@lru_cache(maxsize=64)
def _reader(name: str) -> Callable[[Any], object] | None:
    if is_path(name) or name not in registry.names("verifiers"):
        return None
    return load(name).reads


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
