"""Multiple choice: a letter in any decoration, or the text of a choice if the reference has the texts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.answer import one_answer
from verizero.verifiers.base import VerifierParams, verifier
from verizero.verifiers.exact import normal

LETTERS = "ABCDEFGHIJ"
"""Letters that name a choice, in order."""
MAX_CHARS = 2_000
"""Maximum of characters in an answer; a longer one is prose."""
MARKED = re.compile(
    r"(?:(?:the|correct|right|best|choice|option|answer|letter|is|i|choose|pick)\s+){0,5}"
    r"[(\[{]?\s*(?P<letter>[A-Za-z])\s*(?:[)\]}]|[.:,)]|$|\s+-|(?=\())\s*(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
SEVERAL = re.compile(
    r"(?:(?:the|choice|option|choices|options|either|both)\s+){0,2}[(\[{]?[A-Za-z][)\]}]?[.:]?"
    r"(?:\s*(?:,|/|&|;|\bor\b|\band\b|\s)\s*(?:or\s+|and\s+|maybe\s+|option\s+)?[(\[{]?[A-Za-z][)\]}]?[.:]?)+",
    re.IGNORECASE,
)
PLAIN = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\{([^{}]*)\}")
HEDGE = re.compile(r"(?:or|and|/|&|but|not)\b|[/&]", re.IGNORECASE)


@verifier
def choice(attempt: Attempt, params: VerifierParams) -> Verdict:
    """Return 1 if the answer names the right choice and no other.

    Reference: "B", an index from 0, or {"answer": "B" | index, "choices": [texts] | {"A": text}}. A letter with
    the text of another choice is a contradiction; "A or B" is a hedge; both are wrong.
    """
    gold, texts = _gold(attempt.reference)
    text = one_answer(replace(attempt, reference=list(texts.values())))  # the text of a choice is never cut
    if isinstance(text, Verdict):
        return text
    if len(text) > MAX_CHARS:
        return Verdict("no_answer", 0.0, "no_choice", text[:200])
    picked = _picked(" ".join(unicodedata.normalize("NFKC", PLAIN.sub(r" \1 ", text)).split()), texts)
    if picked is None:
        return Verdict("no_answer", 0.0, "no_choice", text)
    if picked == "":
        return Verdict("graded", 0.0, "several_answers", text)
    right = picked == gold
    return Verdict("graded", float(right), "equal" if right else f"wrong_choice: {picked} is not {gold}", picked)


def _picked(answer: str, texts: Mapping[str, str]) -> str | None:
    """Return the letter that the answer names; "" if it names several, None if it names none."""
    by_text = {normal(text): letter for letter, text in texts.items()}
    if normal(answer) in by_text:
        return by_text[normal(answer)]
    if SEVERAL.fullmatch(answer):
        return ""
    letter, _, rest = answer.partition(" ")
    if letter.upper() in texts and normal(rest) == normal(texts[letter.upper()]):
        return letter.upper()
    marked = MARKED.fullmatch(answer)
    if marked is None or marked["letter"].upper() not in LETTERS:
        return None
    letter, rest = marked["letter"].upper(), marked["rest"].strip()
    if rest.startswith("(") and rest.endswith(")"):
        rest = rest[1:-1].strip()
    if not rest:
        return letter
    if letter in texts and normal(rest) == normal(texts[letter]):
        return letter
    if normal(rest) in by_text:
        return ""
    return None if texts or HEDGE.match(rest) else letter


def _gold(reference: Any) -> tuple[str, Mapping[str, str]]:
    choices: Any = {}
    if isinstance(reference, Mapping):
        choices = reference.get("choices", {})
        reference = reference.get("answer")
    if isinstance(choices, list):
        choices = dict(zip(LETTERS, choices, strict=False))
    texts = {str(k).upper(): str(v) for k, v in dict(choices).items()}
    if isinstance(reference, int) and not isinstance(reference, bool) and 0 <= reference < len(LETTERS):
        return LETTERS[reference], texts
    if isinstance(reference, str):
        bare = reference.strip().strip("()[]. ").upper()
        if len(bare) == 1 and bare in LETTERS:
            return bare, texts
    raise DataError(f"reference: expected one of the letters {LETTERS} or an index, got {reference!r:.80}")
