r"""Labels before an equals sign, which only name what has the value: `\det A =`, `P(X = 4) =`, `\sigma^2 =`."""

from __future__ import annotations

import re

SPACE = r"(?:\s|~|\\[,;:! ])*"
WORDS = (
    r"rank|rk|trace|[Tt]r|nullity|null|Var|Cov|Corr|SD|Res|ord|sgn|sign|dim|deg|det|Re|Im|[Aa]rea|[Vv]ol|[Vv]olume"
    r"|char|ind|index|arg|[Mm]ean|[Mm]edian|[Mm]ode|[Pp]rob"
)
OPERATOR = (
    rf"(?:\\(?:deg|det|dim|ker|arg|sup|inf|Re|Im|Pr|nabla)(?![A-Za-z])"
    rf"|\\(?:operatorname\*?|mathrm|text|mathbf|mathsf|rm)\s?\{{{SPACE}(?:{WORDS}){SPACE}\}}|\b(?:{WORDS})\b"
    rf"|(?:\\(?:mathbb|mathrm|text|operatorname)\s?\{{\s?[PEV]\s?\}}|\b[PEV])(?={SPACE}(?:\\left)?[(\[]))"
    r"(?:_\{[^{}]{1,15}\}|_[A-Za-z0-9])?"
)
ARGUMENT = (
    rf"{SPACE}(?:(?:\\left)?\((?:[^()]|\([^()]{{0,20}}\)){{1,40}}\)|(?:\\left)?\[[^\[\]]{{1,40}}\]"
    r"|[^=<>,;()\[\]&0-9]{0,25})"
)
# Every repetition is bounded, because a label is looked for in every answer with an equals sign.
LABEL = re.compile(
    rf"{SPACE}(?:{OPERATOR}{ARGUMENT}"
    r"|\\?(?:max|min)(?:_\{?[a-z]\}?)?\s[A-Za-z](?:\([a-z,]{1,9}\))?"
    r"|\\(?:sigma|chi)(?:_\{?[A-Za-z]\}?)?\^\{?2\}?"
    r"|(?:\\\||\\[lr]?Vert|\|\|)[^=|]{1,30}?(?:\\\||\\[lr]?Vert|\|\|)"
    r"|[^=<>,;]{1,30}?\\b?mod(?![A-Za-z])\s?\{?\d{1,6}\}?"
    r"|[fgh]\(\s?[fgh]\([^()=]{1,15}\)\s?\)"
    r"|\(\s?[fgh]\s?\\circ\s?[fgh]\s?\)\s?\([^()=]{1,15}\)"
    r"|[fgh]\^\{\s?-1\s?\}\(\s?-?\d[^()=]{0,10}\)"
    r"|\\[dt]?frac\{d\^\{?\d\}?\s?[a-z]\}\{d\s?[a-z]\^\{?\d\}?\}"
    r"|[A-Za-z]\^\{?(?:\*|\\ast|\\star)\}?"
    rf"){SPACE}=(?!=)"
)


ITEM = re.compile(r"[,;&]|\\\\|\\q?quad(?![A-Za-z])|\b(?:and|or)\b\s*\}?|\\begin\{[a-z]+\*?\}")
"""The labels that precede the items of a list."""
LOOKS = re.compile(r"\\(?:left|right|text|mathrm|mathbf|mathsf|mathbb|rm|operatorname)(?![A-Za-z])\*?|[\s\\{}()~]")


WORD = re.compile(r"[A-Za-z][a-z]{2,}")


def with_named_labels(text: str) -> str:
    r"""Return the text with the label of each item as a single name: `\named{PX=4} =` for `P(X = 4) =`."""
    parts, start = [], 0
    for begin in (0, *(m.end() for m in ITEM.finditer(text))):
        label = LABEL.match(text, begin) if begin >= start else None
        if label is not None and text[label.end() :].strip():
            name = LOOKS.sub("", label[0])[:-1]
            parts += [text[start:begin], rf" \text{{{name}}}=" if WORD.fullmatch(name) else rf" \named{{{name}}}="]
            start = label.end()
    return "".join([*parts, text[start:]])
