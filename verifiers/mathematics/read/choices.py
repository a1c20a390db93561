"""Choices: the letter that a gold or an answer names, in any decoration, and the text shown with it."""

from __future__ import annotations

import re
from typing import NamedTuple

from verifiers.mathematics.words.spelled_out import SPACING, STYLE

CHOICE_GOLD = re.compile(r"\s*(?:\(([A-Ja-j])\)|\[([A-J])\]|([A-J])\s?[).:]|([A-J])(?=\s*$))\s*(.*?)\s*", re.DOTALL)
CHOICE_SAID = re.compile(
    r"\s*(?:(?:the\s+)?(?:correct\s+|right\s+)?(?:option|choice|answer|alternative|antwort|réponse|respuesta|risposta"
    r"|resposta|ответ|答案|选项|選項|选|選)\s*(?:is|是|为|為|:)?\s*)?"
    r"(?:\(\s*([A-Za-z])\s*\)|\[\s*([A-Za-z])\s*\]|([A-Za-z])\s*(?:[).:]|-(?=\s)|(?=\s*$)|,?(?=\s*(?:because"
    r"|which)\b)))[\s.:,-]*(.*?)\s*",
    re.DOTALL | re.IGNORECASE,
)
FRAMES = re.compile(r"\\(?:text)?circled|\\f(?:rame)?box|\\mathcal|\\mathscr")
FRAMED = re.compile(
    r"(?:<|\\langle|\\lbrack|\\\{|\\lbrace)\s*\{?([A-Za-z])\}?\s*(?:>|\\rangle|\\rbrack|\\\}|\\rbrace)|\{([A-Za-z])\}"
)
"""One letter in what stands around the letters of choices: <D>, \\langle D \\rangle, \\{D\\}, \\circled{D}."""
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
    framed = FRAMED.fullmatch(FRAMES.sub("", wrapped))
    if framed is not None:
        return Choice((framed[1] or framed[2]).upper(), "")
    said = CHOICE_SAID.fullmatch(wrapped.replace("{", "").replace("}", ""))
    if said is None or OTHER_CHOICE.search(said[4]):
        return None
    return Choice(next(g for g in said.groups()[:3] if g).upper(), said[4].strip(". "))
