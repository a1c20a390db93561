"""Questions with hints, for prompts that are asked again or read by a teacher that knows more."""

from __future__ import annotations

from collections.abc import Mapping

from verizero.pipeline.types import Prompt


def answer_of(prompt: Prompt) -> str | None:
    """Return the reference as a hint can say it; None if it is neither text nor number, e.g. tests of a program."""
    reference = prompt.reference
    if isinstance(reference, Mapping):
        reference = reference.get("answer")
    return str(reference) if isinstance(reference, str | int | float) else None


def hinted_question(prompt: Prompt, hint: str) -> str:
    """Return the hint with the prompt's question and answer in the places of {question} and {answer}."""
    # The question last: it may have braces of its own.
    return hint.replace("{answer}", answer_of(prompt) or "").replace("{question}", prompt.question)
