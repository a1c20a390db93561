"""Choices: the letter that a gold or an answer names, in any decoration, and the text shown with it."""

from __future__ import annotations

import re
from typing import NamedTuple

from verifiers.mathematics.words import SPACING, STYLE

CHOICE_GOLD = re.compile(r"\s*(?:\(([A-Ja-j])\)|\[([A-J])\]|([A-J])\s?[).:]|([A-J])(?=\s*$))\s*(.*?)\s*", re.DOTALL)
CHOICE_SAID = re.compile(
    r"\s*(?:(?:the\s+)?(?:correct\s+|right\s+)?(?:option|choice|answer|alternative)\s*(?:is|:)?\s*)?"
    r"(?:\(\s*([A-Za-z])\s*\)|\[\s*([A-Za-z])\s*\]|([A-Za-z])\s*(?:[).:]|-(?=\s)|(?=\s*$)|,?(?=\s*(?:because"
    r"|which)\b)))[\s.:,-]*(.*?)\s*",
    re.DOTALL | re.IGNORECASE,
)
OTHER_CHOICE = re.compile(
    r"(?:^|[\s(,/&])[A-J](?:$|[\s).,:/&])|\b(?:or|not|and also|either)\b"
    r"|\(\s*(?:false|wrong|incorrect)\s*\)|\b(?:is|was) (?:false|wrong|incorrect)\b|\?$|^(?:and|&|=)\s"
)


class Choice(NamedTuple):
    """A chosen letter (upper case) and the text of the choice, if shown."""

    letter: str
    shown: str


def choice_gold(text: str) -> Choice | None:
    """The choice that a gold answer is, such as C, (C), C. or (C) 42; None if it is not one."""
    said = CHOICE_GOLD.fullmatch(
        STYLE.sub("", text).replace("{", "").replace("}", "").strip("$ .") if "\\" in text else text.strip("$ ")
    )
    if said is None:
        return None
    return Choice(next(g for g in said.groups()[:4] if g).upper(), said[5].strip(". "))


def choice_said(text: str) -> Choice | None:
    """The choice that an answer names, in any decoration; None if it names none or more than one."""
    bare = SPACING.sub(" ", STYLE.sub("", text)).replace("$", "")
    wrapped = bare.strip(" .*`\"'")
    while wrapped.startswith("{") and wrapped.endswith("}"):
        wrapped = wrapped[1:-1].strip()
    said = CHOICE_SAID.fullmatch(wrapped.replace("{", "").replace("}", ""))
    if said is None or OTHER_CHOICE.search(said[4]):
        return None
    return Choice(next(g for g in said.groups()[:3] if g).upper(), said[4].strip(". "))
