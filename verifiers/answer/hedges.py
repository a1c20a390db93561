"""Words around an answer that take it back: another candidate beside a box, answers of somebody else, bounds."""

from __future__ import annotations

import re

VALUE = r"(?:\$[^$]{1,80}\$|\\\(.{1,80}?\\\)|[-+]?\d[\d.,/:]{0,20}(?<=\d)%?|[A-J]\b(?!['’]))"
OR_ELSE = re.compile(
    r"[\s$*]{0,4}(?:\\[)\]])?[\s$*]{0,4}[,;(]?\s?\(?or\s+"
    r"(?:(?:maybe|perhaps|possibly|probably|even|else|it (?:may|might|could) be)\s+){0,2}"
    rf"(?:[A-Za-z]\s?=\s?)?({VALUE})"
)
EITHER = re.compile(rf"\b[Ee]ither\s+({VALUE})\s+or\s+(?:\$|\\\(|\s)*$")
BOUNDED = re.compile(
    r"\b(?:at (?:least|most)|(?:less|more|greater|fewer|smaller|larger|other|rather) than|between|almost|nearly"
    r"|instead of|below|above|under|over|exceeds?)\s*$",
    re.IGNORECASE,
)
"""Before the formula of a concluding sentence: what says that it is not the value itself."""
OF_ANOTHER = re.compile(
    r"\b(?:wrong|incorrect|false|first|initial|earlier|previous|original|naive|tempting|common|guessed|tentative)\s+$",
    re.IGNORECASE,
)
SUPPOSITION = re.compile(r"(?:^|[.!?\n]\s*)(?:so\s+)?if\b[^.!?\n]*$", re.IGNORECASE)


def beside(text: str, start: int, end: int) -> str | None:
    """The other candidate next to a box in text[start:end]: "or 5" behind it, "either 5 or" before it; None if none."""
    hedge = OR_ELSE.match(text, end) or EITHER.search(text[max(0, start - 120) : start])
    return hedge[1] if hedge else None


def is_of_another(text: str, cue: re.Match[str]) -> bool:
    """Whether a cue tells of a wrong or an earlier answer: "the common wrong answer is"."""
    return OF_ANOTHER.search(text[max(0, cue.start() - 20) : cue.start()]) is not None


def is_supposed(text: str, cue: re.Match[str]) -> bool:
    """Whether a cue only says what the answer would be, in a sentence that begins with an "if"."""
    return cue.group().endswith("would be") and bool(SUPPOSITION.search(text[max(0, cue.start() - 200) : cue.start()]))
