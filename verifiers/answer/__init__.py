"""Find the final answer of a response. All verifiers use it.

In this order: thinking is cut, then the last closed box, `<answer>` tags, an announcement such as "the answer is" in
one of some thirty languages, the concluding sentence. No number is taken from anywhere else in the text.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.answer.parts import (
    MAX_TAIL,
    Answer,
    after_thinking,
    boxed_or_tagged,
    is_blank,
    last_box,
    last_tag,
    program_places,
    without_decoration,
)
from verizero.verifiers.answer.prose import announced_answer, concluding_answer

__all__ = [
    "MAX_TAIL",
    "Answer",
    "after_thinking",
    "announced_answer",
    "boxed_or_tagged",
    "final_answer",
    "folded",
    "is_blank",
    "last_box",
    "last_tag",
    "one_answer",
    "program_places",
    "too_long",
    "without_decoration",
]


MAX_DECORATION = 100
"""Characters by which an answer may be longer than the reference that it is: spaces, emphasis, dollar signs."""


def final_answer(attempt: Attempt) -> Answer:
    """Return the final answer of a response, or the reason why it has none.

    A response that was cut at its length limit answers only in a box or tag that it closed. What is the reference,
    letter for letter, is never cut: "No. 5: Who is Ann?" announced, or as the whole response, is the answer to itself.
    """
    part = after_thinking(attempt)
    if part.text is None:
        return part
    text = part.text[-MAX_TAIL:].strip()
    answer, offered = boxed_or_tagged(text), [text]
    if answer is None and attempt.truncated:
        return Answer(None, "truncated")
    if answer is None:
        answer = announced_answer(text) or concluding_answer(text)
        offered = [*answer.uncut, text]
    elif answer.text is not None:
        offered = [] if answer.others else [answer.text]
        inner = (
            announced_answer(answer.text) if answer.reason == "answer_tag" else None
        )  # <answer>The answer is 42.</answer>
        answer = inner if inner is not None and inner.text is not None else answer
    same = next((t for t in (_as_reference(uncut, attempt.reference) for uncut in offered) if t is not None), None)
    if same is not None:
        return Answer(same, answer.reason if answer.text is not None else "whole", same)
    if answer.text is None:
        return answer
    return replace(answer, text=without_decoration(answer.text), written=answer.text)


def _as_reference(text: str, reference: Any) -> str | None:
    """Return `text`, with or without its decoration, if it is a reference up to spaces and case."""
    references = reference if isinstance(reference, list) else [reference]
    texts = [str(r) for r in references if isinstance(r, str | int | float)]
    if len(text) > MAX_DECORATION + max(map(len, texts), default=-MAX_DECORATION):
        return None
    wanted = {folded(t) for text in texts for t in (text, without_decoration(text))}
    return next(
        (t for t in (text.strip(), without_decoration(text), text.removesuffix(".")) if folded(t) in wanted), None
    )


def folded(text: str) -> str:
    """Return a text in one case, with one space between its words."""
    return " ".join(text.split()).casefold()


def one_answer(attempt: Attempt, max_chars: int | None = None) -> str | Verdict:
    """Return the final answer's text, or a verdict if it cannot be compared: no answer, several, or too long."""
    answer = final_answer(attempt)
    if answer.text is None:
        return answer.no_answer()
    if answer.others:
        return Verdict("graded", 0.0, "several_answers", answer.text)
    if max_chars is not None and len(answer.text) > max_chars:
        return too_long(answer.text)
    return answer.text


def too_long(text: str) -> Verdict:
    """Return the verdict on a text that is longer than a verifier reads."""
    return Verdict("graded", 0.0, f"too_long: {len(text)} characters", text[:200])
