"""Write questions with hints, for prompts that are asked again or for a teacher that sees the answer."""

from __future__ import annotations

import re
from collections.abc import Mapping

from verizero.pipeline.types import Prompt


def answer_of(prompt: Prompt) -> str | None:
    """Return the reference as text; None if it is neither text nor number, e.g. tests of a program."""
    reference = prompt.reference
    if isinstance(reference, Mapping):
        reference = reference.get("answer")
    return str(reference) if isinstance(reference, str | int | float) else None


def hinted_question(prompt: Prompt, hint: str) -> str:
    """Return the hint with {question} and {answer} replaced by the prompt's."""
    # The question last: it may have braces of its own.
    return hint.replace("{answer}", answer_of(prompt) or "").replace("{question}", prompt.asked)


def with_feedback(prompt: Prompt, template: str, right: str, message: str) -> str:
    """Return the template with {question}, {right} and {message} replaced by the prompt's question and these parts."""
    texts = {"question": prompt.asked, "right": right, "message": message}
    # In one pass: each of the three may have braces of its own.
    return re.sub(r"\{(question|right|message)\}", lambda match: texts[match[1]], template)
