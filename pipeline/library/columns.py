"""The meaning of columns, guessed from the rows of the layouts that data sets are published in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

from verizero.pipeline.errors import DataError
from verizero.pipeline.library.program_columns import mapping_of_programs

Kind = Literal["prompts", "demonstrations", "pairs"]
QUESTIONS = ("problem", "question", "question_content", "prompt", "instruction", "query", "input", "messages")
ANSWERS = ("answer", "final_answer", "ground_truth", "target", "label", "output", "answers", "solution", "expected")
DEMONSTRATIONS = ("completion", "response", "chosen", "output", "solution")
CONVERSATIONS = ("messages", "conversations", "conversation")
CONTEXTS = {"instruction": ("input",)}
"""Columns that belong to the question, by the question's column."""
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


def guess(rows: Sequence[Mapping[str, Any]], label: str) -> Guess:
    """Return the meaning of the columns of these rows, of which a few are enough.

    Raises: DataError naming the columns if there is no question, or nothing to compare or to imitate.
    """
    if not rows:
        raise DataError(f"{label} has no rows")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if {"chosen", "rejected"} <= set(columns):
        prompt = next((name for name in QUESTIONS if _is_question(rows, name)), None)
        line = f"{label}: pairs of 'chosen' and 'rejected'" + (f", prompt is {prompt!r}" if prompt else "")
        return Guess("pairs", {"prompt": prompt} if prompt else {}, None, line)
    if (programs := mapping_of_programs(rows)) is not None:
        name, mapping = programs
        line = f"{label}: programs in the columns of {name}, question is {mapping['question']!r}"
        return Guess("prompts", {**mapping, "id": None}, mapping["default_verifier"], line)
    question = next((name for name in QUESTIONS if _is_question(rows, name)), None)
    conversation = next((name for name in CONVERSATIONS if _is_conversation(rows, name)), None)
    if question is None and conversation is not None:
        return _imitated(label, conversation, columns)
    if question is None:
        raise DataError(
            f"{label}: no column looks like a question; columns: {', '.join(columns)}. Call one of them "
            f"{', '.join(QUESTIONS[:4])} or messages, or write a recipe with a mapping (docs/data.md)"
        )
    answer, verifier = _answer(rows, question)
    context = [name for name in CONTEXTS.get(question, ()) if _has_text(rows, name)]
    mapping = {"question": question, "id": None}
    mapping |= {"context": context} if context else {}
    if answer is None:
        imitated = next((n for n in DEMONSTRATIONS if n != question and _has_response(rows, n)), None)
        mapping["answer"] = None
        if imitated is None and conversation is not None:
            return _imitated(label, conversation, columns)
        if imitated is None:
            return Guess("prompts", mapping, None, f"{label}: question is {question!r}; there is no answer")
        mapping["demonstration"] = imitated
        return Guess("demonstrations", mapping, None, f"{label}: question is {question!r}, response {imitated!r}")
    mapping["answer"] = answer
    name = answer if isinstance(answer, str) else answer["column"]
    how = "" if isinstance(answer, str) else f" ({_how(answer)})"
    return Guess("prompts", mapping, verifier, f"{label}: question is {question!r}, answer {name!r}{how}")


def _how(answer: Mapping[str, Any]) -> str:
    if answer.get("boxed"):
        return r"in \boxed{}"
    return f"after {answer['after']!r}"


def _imitated(label: str, conversation: str, columns: Sequence[str]) -> Guess:
    mapping: dict[str, Any] = {"conversation": conversation, "answer": None, "id": None}
    mapping |= {"tools": "tools"} if "tools" in columns else {}
    how = ", with calls of tools" if "tools" in columns else ""
    return Guess("demonstrations", mapping, None, f"{label}: conversations in {conversation!r}{how}")


def _is_question(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    values = [row.get(name) for row in rows]
    if all(isinstance(v, str) and v.strip() for v in values):
        return True
    return all(_is_chat(v) and v[-1]["role"] == "user" for v in values)


def _is_chat(value: Any) -> TypeGuard[list[Mapping[str, Any]]]:
    return isinstance(value, list) and bool(value) and all(isinstance(m, Mapping) and "role" in m for m in value)


def _has_text(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    return any(isinstance(row.get(name), str) and row[name].strip() for row in rows)


def _has_response(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    return _has_text(rows, name) or all(_is_chat(row.get(name)) for row in rows)


def _is_conversation(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    turns = [row.get(name) for row in rows]
    return all(
        isinstance(t, list) and t and all(isinstance(m, Mapping) and {"role", "from"} & set(m) for m in t)
        for t in turns
    )


def _answer(rows: Sequence[Mapping[str, Any]], question: str) -> tuple[Any, str | None]:
    """Return the column of the answer, with what is cut out of it, and the verifier for it; (None, None): no answer."""
    if all(isinstance(row.get("reward_model"), Mapping) and "ground_truth" in row["reward_model"] for row in rows):
        values = [row["reward_model"]["ground_truth"] for row in rows]
        return "reward_model.ground_truth", _verifier(values)
    for name in ANSWERS:
        values = [row.get(name) for row in rows]
        if name == question or any(v is None or v == "" for v in values):
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
