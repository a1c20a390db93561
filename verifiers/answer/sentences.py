"""Find the ends of sentences, and lines that are no sentences: code, queries, addresses, pairs."""

from __future__ import annotations

import re

from verizero.verifiers.answer.words import CONCLUDES, OPENING

SENTENCE_END = re.compile(r"(?<=[^\d\s])[.!?]\**(?=\s)|(?<=\d)[.!?]\**(?=\s+[A-Z\\$*]|\s*\n)|[。！？؟।](?=.)|\n\s*\n")
MONTHS = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
ABBREVIATED = re.compile(
    r"\b(?:Dr|Mr|Mrs|Ms|St|Prof|Sgt|Capt|Mt|Ft|Sr|Jr|Lt|Col|Gen|Rev|Hon|Gov|Sen|Rep|vs|et al|e\.g|i\.e)\.\s"
    r"|\b(?:No|Nos|[Vv]ol|[Vv]|pp?|[Ff]ig|[Ee]qs?|[Cc]h|[Ss]ec|[Aa]rt|[Oo]p|[Aa]pprox|ca?|[bd]|[Gg]en|Ex|Ps)\.\s+[\d§(]"
    rf"|\b{MONTHS}[a-z]{{0,2}}\.\s+\d|\b\d{{1,2}}\.\s+{MONTHS}|\b(?:[A-Za-z]\.)+[A-Za-z]\.\s+[a-z\d]|\betc\.\s+[a-z]"
)
"""A dot that ends no sentence, with what follows it: Dr. Who, No. 5, Oct. 21, 26. March, at 9 p.m. today."""
MAX_ABBREVIATION = 12
CODE = re.compile(
    r"^\W{0,3}(?:select|insert|update|delete|create|alter|with)\b.{0,300}?\b(?:from|into|set|table|as|\*)(?!\w)"
    r"|[;{}]\s*$|\s\?\s[^:]{1,80}\s:\s|^\s*[{\[<]|://|::|=>|->|[=!+*/%-]=|\w\(\)|^\s*(?:const|var|int|def|sudo|git)\s+\S",
    re.IGNORECASE,
)
ASSERTS = re.compile(
    r"\W{0,3}(?:the|we|it|there|that|this|these|those|in|i|you|he|she|they|each|all|all of|il|le|la|les|el|los|der|die"
    r"|das)\b"
    r"|(?:[A-Za-z'’]+\s){1,8}(?:is|are|was|were|equals?|has|have|had|gets?|costs?|makes?|takes?|gives?)\s[^:=]*\d",
    re.IGNORECASE,
)


def sentence_ends(text: str) -> list[re.Match[str]]:
    """Return the marks that end sentences of a text; dots of abbreviations are left out."""
    return [m for m in SENTENCE_END.finditer(text) if not _is_abbreviation(text, m)]


def _is_abbreviation(text: str, mark: re.Match[str]) -> bool:
    if mark[0][0] != ".":
        return False
    start, stop = max(0, mark.start() - MAX_ABBREVIATION), mark.end() + MAX_ABBREVIATION
    return any(m.start() < mark.end() - start <= m.end() for m in ABBREVIATED.finditer(text[start:stop]))


def is_code(line: str) -> bool:
    """True if a line is code, a query, an address or data, where words and signs announce no value."""
    return CODE.search(line) is not None


def asserts(line: str) -> bool:
    """True if a line is a sentence that tells something, not a name, a pair or an expression."""
    if is_code(line):
        return False
    return bool(
        line.endswith((".", "!", "*", "。")) or OPENING.match(line) or CONCLUDES.search(line) or ASSERTS.match(line)
    )
