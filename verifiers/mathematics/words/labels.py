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


def without_label(text: str) -> str:
    """Return the text behind a label and its equals sign; all of the text if it does not begin with a label."""
    label = LABEL.match(text)
    rest = text[label.end() :] if label is not None else ""
    return rest.strip() if rest.strip() else text
