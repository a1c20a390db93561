"""The meaning of columns, guessed from rows: by the layouts of configs/data that say so, else by usual names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, TypeGuard

from verizero.pipeline.config.data import Column, ColumnMapping, Source, recognised_layouts
from verizero.pipeline.config.pairs import PairColumns
from verizero.pipeline.data.prompts import prompt_of
from verizero.pipeline.data.rows_of_source import choices_of, pick
from verizero.pipeline.data.source_files import is_missing, present
from verizero.pipeline.errors import DataError
from verizero.pipeline.host.disk import parse_json

Kind = Literal["prompts", "demonstrations", "pairs"]
QUESTIONS = ("problem", "question", "question_content", "prompt", "instruction", "query", "input", "messages")
ANSWERS = ("answer", "final_answer", "ground_truth", "target", "label", "output", "answers", "solution", "expected")
DEMONSTRATIONS = ("completion", "response", "chosen", "output", "solution")
CONVERSATIONS = ("messages", "conversations", "conversation")
CONTEXTS = {"instruction": ("input",)}
"""Columns that belong to the question, by the question's column."""
MOST_NAMED = 10
"""Columns without a use that are named."""
READ = frozenset({"system", "domain", "verifier", "environment", "asked", "demonstration"})
"""Columns that are read without being named in a mapping."""
PAIRS = frozenset({*PairColumns.model_fields})
PROGRAMS = ("code", "unit_tests")
MOST_READ = 5
"""Rows by which a layout is recognised; each may hold megabytes of tests."""
PLAIN_NUMBER = re.compile(r"\s*[-+]?\$?[\d,]*\.?\d+(?:/\d+)?\s*%?\s*")


@dataclass(frozen=True, slots=True)
class Guess:
    """The meaning of the columns of some rows."""

    kind: Kind
    mapping: dict[str, Any]
    """The fields of a column mapping, for pairs those of `PairColumns`."""
    verifier: str | None
    """A verifier that fits the answers; None: none is sure."""
    line: str
    """One line for a person."""


EXAMPLE = '{"question": "1+1=", "answer": "2"}'


def guess(rows: Sequence[Mapping[str, Any]], label: str) -> Guess:
    """Return the meaning of the columns of these rows, of which a few are enough, and name those that are not used.

    A column counts where at least half of the rows have it: cells that are missing say nothing of it.
    Raises: DataError naming the columns if there is no question, or nothing to compare or to imitate.
    """
    if not rows:
        raise DataError(f"{label} has no rows; give at least one, e.g. {EXAMPLE}")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    meaning = _meaning(rows, label, columns)
    used = _names(meaning.mapping) | (PAIRS if meaning.kind == "pairs" else READ)
    unused = [repr(name) for name in columns if name not in used]
    if not unused:
        return meaning
    more = f" and {len(unused) - MOST_NAMED} more" if len(unused) > MOST_NAMED else ""
    but = " (unless a reward function names them)" if meaning.kind == "prompts" else ""
    return replace(meaning, line=f"{meaning.line}; not used: {', '.join(unused[:MOST_NAMED])}{more}{but}")


def _meaning(all_rows: Sequence[Mapping[str, Any]], label: str, columns: Sequence[str]) -> Guess:
    rows = [present(row) for row in all_rows]
    question = next((name for name in QUESTIONS if _is_question(_reading(rows, name)[1])), None)
    mapping: dict[str, Any] = {} if question is None else {"question": _reading(rows, question)[0]}
    context = [name for name in CONTEXTS.get(question or "", ()) if _has_text(rows, name)]
    mapping |= {"context": context} if context else {}
    of_question = f"question is {question!r}" + "".join(f" with {name!r}" for name in context)
    if {"chosen", "rejected"} <= set(columns):
        mapping = {"prompt" if key == "question" else key: value for key, value in mapping.items()}
        mapping |= {n: _reading(rows, n)[0] for n in ("chosen", "rejected") if _reading(rows, n)[0] != n}
        line = f"{label}: pairs of 'chosen' and 'rejected'" + (
            f", {of_question.replace('question', 'prompt', 1)}" if question else ""
        )
        return Guess("pairs", mapping, None, line)
    if (layout := _layout(all_rows)) is not None:
        name, fields = layout
        what = "programs" if fields["default_verifier"] in PROGRAMS else "prompts"
        line = f"{label}: {what} in the columns of {name}, question is {fields['question']!r}"
        return Guess("prompts", {**fields, "id": None}, fields["default_verifier"], line)
    conversation = next((name for name in CONVERSATIONS if _is_conversation(_reading(rows, name)[1])), None)
    if question is None and conversation is not None:
        return _imitated(label, rows, conversation, columns)
    if question is None:
        raise DataError(
            f"{label}: no column looks like a question; columns: {', '.join(columns)}. Call one of them "
            f"{', '.join(QUESTIONS[:4])} or messages, or write a recipe with a mapping (docs/data.md)"
        )
    mapping["id"] = None
    if (choices := choices_of(rows, columns)) is not None:
        of_choices = ", ".join(repr(name) for key, name in choices.items() if key != "answer")
        line = f"{label}: {of_question}, answer {choices['answer']!r} is one of the choices in {of_choices}"
        return Guess("prompts", {**mapping, "answer": {"columns": choices}}, "choice", line)
    answer, verifier = _answer(rows, question)
    mapping["answer"] = answer
    if answer is None:
        imitated = next((n for n in DEMONSTRATIONS if n != question and _has_response(rows, n)), None)
        if imitated is None and conversation is not None:
            return _imitated(label, rows, conversation, columns)
        if imitated is None:
            return Guess("prompts", mapping, None, f"{label}: {of_question}; there is no answer")
        mapping["demonstration"] = _reading(rows, imitated)[0]
        return Guess("demonstrations", mapping, None, f"{label}: {of_question}, response {imitated!r}")
    name = answer if isinstance(answer, str) else answer["column"]
    how = ""
    if not isinstance(answer, str):
        how = r" (in \boxed{})" if answer.get("boxed") else f" (after {answer['after']!r})"
    return Guess("prompts", mapping, verifier, f"{label}: {of_question}, answer {name!r}{how}")


def _layout(rows: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, Any]] | None:
    """Return name and fields of the layout that reads these rows, and the most of their columns; None without one."""
    fitting = [
        (_num_columns(source.mapping, rows[0]), name, fields)
        for name, (recognise, fields, source) in _layouts().items()
        if rows[0].keys() >= recognise and _reads(source, rows[:MOST_READ])
    ]
    return max(fitting, key=lambda item: item[:2])[1:] if fitting else None


@lru_cache(maxsize=1)
def _layouts() -> dict[str, tuple[frozenset[str], dict[str, Any], Source]]:
    return {
        name: (frozenset(recognise), fields, Source.model_validate({"file": "rows.jsonl", "mapping": fields}))
        for name, (recognise, fields) in recognised_layouts().items()
    }


def _reads(source: Source, rows: Sequence[Mapping[str, Any]]) -> bool:
    """True if every row has a question, and any of them is a good one: some data sets have bad rows."""
    num_read = 0
    for row in rows:
        try:
            pick(row, source.mapping.question)
        except DataError:
            return False
        with suppress(DataError):
            prompt_of(row, source, 1)
            num_read += 1
    return num_read > 0


def _num_columns(mapping: ColumnMapping, row: Mapping[str, Any]) -> int:
    """Return how many columns of the mapping the row has."""
    columns: list[Column | None] = [mapping.question, *mapping.context, mapping.id, mapping.demonstration]
    if mapping.answer is not None:
        columns += mapping.answer.columns.values() or [mapping.answer]
    return len({c.column.partition(".")[0] for c in columns if c is not None} & row.keys())


def _names(mapping: Any) -> set[str]:
    """Return all texts in a mapping, among them the names of its columns, and of columns that paths begin with."""
    if isinstance(mapping, str):
        return {mapping, mapping.partition(".")[0]}
    parts = mapping.values() if isinstance(mapping, Mapping) else mapping if isinstance(mapping, list) else ()
    return {name for part in parts for name in _names(part)}


def _reading(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[Any, list[Any]]:
    """Return the column as a mapping names it, and its values; none if it is missing in most rows.

    A column of chats as texts of JSON is read as one of chats.
    """
    values = [row[name] for row in rows if name in row]
    if len(values) < len(rows) / 2:
        return name, []
    if all(isinstance(value, str) and value.lstrip().startswith("[") for value in values):
        with suppress(ValueError, RecursionError):
            chats = [parse_json(value) for value in values]
            if _is_conversation(chats):
                return {"column": name, "parse": "json"}, chats
    return name, values


def _imitated(label: str, rows: Sequence[Mapping[str, Any]], conversation: str, columns: Sequence[str]) -> Guess:
    mapping: dict[str, Any] = {"conversation": _reading(rows, conversation)[0], "answer": None, "id": None}
    mapping |= {"tools": "tools"} if "tools" in columns else {}
    how = ", with calls of tools" if "tools" in columns else ""
    return Guess("demonstrations", mapping, None, f"{label}: conversations in {conversation!r}{how}")


def _is_question(values: Sequence[Any]) -> bool:
    if all(isinstance(v, str) for v in values):
        return bool(values)
    return all(_is_chat(v) and v[-1].get("role") == "user" for v in values)


def _is_chat(value: Any) -> TypeGuard[list[Mapping[str, Any]]]:
    return isinstance(value, list) and bool(value) and all(isinstance(m, Mapping) and "role" in m for m in value)


def _has_text(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    return any(isinstance(row.get(name), str) for row in rows)


def _has_response(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    values = _reading(rows, name)[1]
    return _has_text(rows, name) or (bool(values) and all(map(_is_chat, values)))


def _is_conversation(values: Sequence[Any]) -> bool:
    return bool(values) and all(
        isinstance(t, list) and all(isinstance(m, Mapping) and {"role", "from"} & set(m) for m in t) for t in values
    )


def _answer(rows: Sequence[Mapping[str, Any]], question: str) -> tuple[Any, str | None]:
    """Return the column of the answer, with what is cut out of it, and the verifier for it; (None, None): no answer."""
    graded = [row.get("reward_model") for row in rows]
    values = [g["ground_truth"] for g in graded if isinstance(g, Mapping) and not is_missing(g.get("ground_truth"))]
    if values and len(values) >= len(rows) / 2:
        return "reward_model.ground_truth", _verifier(values)
    for name in ANSWERS:
        _, values = _reading(rows, name)
        if name == question or not values:
            continue
        texts = [v for v in values if isinstance(v, str)]
        if len(texts) == len(values) and all("####" in t for t in texts):
            return {"column": name, "after": "####", "replace": [[",", ""]]}, "math"
        if len(texts) == len(values) and all("\\boxed{" in t for t in texts):
            return {"column": name, "boxed": True}, "math"
        if name in DEMONSTRATIONS and len(texts) == len(values) and _verifier(values) is None:
            continue  # a whole response, which nothing is compared to
        return name, _verifier(values)
    return None, None


def _verifier(values: Sequence[Any]) -> str | None:
    """Return the verifier of numbers and formulas; None for other texts, of which only the user knows what is right."""
    texts = [str(v) for v in values if isinstance(v, str | int | float) and not isinstance(v, bool)]
    if len(texts) < len(values) or not texts:
        return None
    formulas = sum(bool(PLAIN_NUMBER.fullmatch(t)) or (("\\" in t or "$" in t) and len(t) < 200) for t in texts)
    return "math" if formulas >= 0.7 * len(texts) else None
