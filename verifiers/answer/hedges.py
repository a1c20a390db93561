"""Words around an answer that withdraw it: another candidate, an answer of somebody else, a bound."""

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
"""Words before the formula of a concluding sentence which show that the formula is not the value itself."""
OF_ANOTHER = re.compile(
    r"\b(?:wrong|incorrect|false|first|initial|earlier|previous|original|naive|tempting|common|guessed|tentative|trap|unlikely)\s+$",
    re.IGNORECASE,
)
TAKEN_BACK = re.compile(
    r"(?:\b(?:wait|no|nope|sorry|actually|correction|oops|hmm|but|however|scratch that|on second thought|my mistake"
    r"|(?:that|this|it) (?:is|was) (?:wrong|incorrect|not right|not correct)"
    r"|i (?:was wrong|made an? (?:mistake|error)))\b"
    r"|that['’]s (?:wrong|incorrect|not right))[\s,:;.!—–-]{1,4}"
    r"(?:[a-z' ]{0,30}?\b(?:it|that|this|answer|result|value)\s(?:is|was|equals|(?:should|must|has to|would) be)\s+"
    rf"(?:actually\s|really\s|in fact\s)?)?({VALUE})"
    r"(?=[\s$*]*(?:\\[)\]])?[.!]?\**(?:\s+(?-i:[A-Z\\])|\s*\n|\s*$|;))",
    re.IGNORECASE,
)
"""Words after an answer that replace it by another value: "wait, no, it is 43"."""
SUPPOSITION = re.compile(r"(?:^|[.!?\n]\s*)(?:so\s+)?if\b[^.!?\n]*$", re.IGNORECASE)


MAX_REST = 400
"""Maximum of characters after an answer in which such words are looked for."""
BARE_LINE = re.compile(r"\s*[-*]{0,2}\s*(?:\w[.)]\s)?\**([^\s*:](?:[^:\n]|:(?=\S)){0,40}?)[*.]{0,3}\s*?(?:\n|$)")
"""A line with only a candidate; a heading ends with a colon."""


def candidate_near_box(text: str, start: int, end: int) -> str | None:
    """Return the candidate offered next to a box in text[start:end]: "or 5" behind it, "either 5 or" before it."""
    hedge = OR_ELSE.match(text, end) or EITHER.search(text[max(0, start - 120) : start])
    return hedge[1] if hedge else None


def replacing_value(rest: str) -> str | None:
    """Return the value by which `rest`, the text after an answer, replaces it; None if it does not."""
    later = TAKEN_BACK.search(rest[:MAX_REST])
    return later[1].strip("$ ") if later else None


def candidate_below(content: str, rest: str) -> str | None:
    """Return the next line if it is a candidate like `content`, the line before `rest`: "Answer:", "B", "C".

    Lines are alike if both are values (numbers, formulas, letters), or both are at most three words.
    """
    line = BARE_LINE.match(rest.lstrip(" .*")[1:]) if rest.lstrip(" .*").startswith("\n") else None
    if line is None:
        return None
    values = [re.fullmatch(VALUE, text.strip("*. ")) is not None for text in (content, line[1])]
    short = all(len(text.split()) <= 3 and not re.search(r"\d", text) for text in (content, line[1]))
    return line[1] if all(values) or (not any(values) and short) else None


def is_supposed(text: str, cue: re.Match[str]) -> bool:
    """True if a cue only says what the answer would be, in a sentence that begins with an "if"."""
    return cue.group().endswith("would be") and bool(SUPPOSITION.search(text[max(0, cue.start() - 200) : cue.start()]))
