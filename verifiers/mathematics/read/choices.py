"""Multiple choice: the letter that a gold or an answer names, in any decoration, and the text shown with it."""

from __future__ import annotations

import re
from typing import NamedTuple

from verizero.verifiers.mathematics.words.spelled_out import SPACING, STYLE

CHOICE_GOLD = re.compile(r"\s*(?:\(([A-Ja-j])\)|\[([A-J])\]|([A-J])\s?[).:]|([A-J])(?=\s*$))\s*(.*?)\s*", re.DOTALL)
CHOICE_SAID = re.compile(
    r"\s*(?:(?:the\s+)?(?:correct\s+|right\s+)?(?:option|choice|answer|alternative|antwort|réponse|respuesta|risposta"
    r"|resposta|ответ|答案|选项|選項|选|選)\s*(?:is|是|为|為|:)?\s*)?"
    r"(?:\(\s*([A-Za-z])\s*\)|\[\s*([A-Za-z])\s*\]|([A-Za-z])\s*(?:[).:]|-(?=\s)|(?=\s*$)|,?(?=\s*(?:because"
    r"|which)\b)))(?:[\s.:,]|-(?!\d))*(.*?)\s*",
    re.DOTALL | re.IGNORECASE,
)
FRAMES = re.compile(r"\\(?:text)?circled|\\f(?:rame)?box|\\mathcal|\\mathscr")
FRAMED = re.compile(
    r"(?:<|\\langle|\\lbrack|\\\{|\\lbrace)\s*\{?([A-Za-z])\}?\s*(?:>|\\rangle|\\rbrack|\\\}|\\rbrace)|\{([A-Za-z])\}"
)
"""A letter in the brackets that are put around choices: <D>, \\langle D \\rangle, \\{D\\}, \\circled{D}."""
BRACKETS = str.maketrans(dict.fromkeys("()[]{}$.*", " "))
SEVERAL = re.compile(r"\s*[A-J](?:\s*(?:[,;&/]|\band\b|,\s*and\b)?\s*[A-J])+\s*")
OTHER_CHOICE = re.compile(
    r"(?:^(?!A\s(?!\w*s\b|(?:and|or|also|too|would|could|should|may|might|can|will|had|did|came|but|in|on|if)\b)[a-z])"
    r"|[\s(,/&])[A-J](?:$|[\s).,:/&])|\b(?:or|not|and also|either)\b"
    r"|\(\s*(?:false|wrong|incorrect)\s*\)|\b(?:is|was) (?:false|wrong|incorrect)\b|\?$|^(?:and|&|=)\s"
)
"""Text behind a letter that names another choice, or takes the letter back."""
VALUE_FIRST = re.compile(
    r"(?P<value>(?:(?!\\n(?:eq?|ot)(?![a-z])|[=?≠]|(?<![\\A-Za-z])(?:[A-Za-z]{3}|no|if|is)|(?:^|[\s,;{])\(?[A-Ja-j]\)).)*"
    r"[\d)\]}%!])(?=\s|~|\\[ ,;:!]|\\\w+\{\s)(?:\s|~|\\[ ,;:!])*\\(?:text|math)(?:bf|it|rm|sf)?\{\s*\(([A-J])\)\s*\}",
    re.DOTALL,
)
"""A value with its letter behind it, which is set as text: -2 \\textbf{ (B)}. Unset, -2 (B) may be a product."""


class Choice(NamedTuple):
    """A chosen letter (upper case) and the text of the choice, if shown."""

    letter: str
    shown: str


def choices_in(text: str) -> frozenset[str] | None:
    """Return the letters of several choices in any decoration: A, C and E, (A), (C), ACE; None for another text."""
    bare = SPACING.sub(" ", STYLE.sub("", FRAMES.sub("", text))).translate(BRACKETS)
    if SEVERAL.fullmatch(bare) is None:
        return None
    letters = re.findall(r"\b[A-J]\b|[A-J](?=[A-J])|(?<=[A-J])[A-J]", bare)
    return frozenset(letters) if len(letters) == len(set(letters)) else None


def choice_of_gold(text: str) -> Choice | None:
    """Return the choice that a gold answer is, such as C, (C), C. or (C) 42; None if it is not a choice."""
    if choices_in(text) is not None:
        return None
    bare = STYLE.sub("", text).replace("{", "").replace("}", "").strip("$ .") if "\\" in text else text.strip("$ ")
    parts = CHOICE_GOLD.fullmatch(bare)
    return None if parts is None else Choice(_letter(parts), parts[5].strip(". "))


def choice_of_answer(text: str) -> Choice | None:
    """Return the choice that an answer names, in any decoration; None if it names none or more than one."""
    bare = SPACING.sub(" ", STYLE.sub("", text)).replace("$", "")
    wrapped = bare.strip(" .*`\"'")
    while wrapped.startswith("{") and wrapped.endswith("}"):
        wrapped = wrapped[1:-1].strip()
    framed = FRAMED.fullmatch(FRAMES.sub("", wrapped))
    if framed is not None:
        return Choice(_letter(framed), "")
    unbraced = wrapped.replace("{", "").replace("}", "")
    behind = VALUE_FIRST.fullmatch(text.replace("$", "").strip(" .*"))
    if behind is not None and OTHER_CHOICE.search(behind["value"]) is None:
        return Choice(behind[2], behind["value"].strip())
    parts = CHOICE_SAID.fullmatch(unbraced)
    if parts is None or OTHER_CHOICE.search(parts[4]):
        return None
    return Choice(_letter(parts), parts[4].strip(". "))


def _letter(parts: re.Match[str]) -> str:
    """Return the first group that matched, which is the letter in each of the patterns."""
    return next(group for group in parts.groups() if group).upper()
