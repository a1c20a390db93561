"""Answer text to tokens. Numbers are exact here already; styles, spacing and sizes are gone; nothing is evaluated."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, NamedTuple

from verifiers.mathematics.read.syntax_tree import Node, num
from verifiers.mathematics.words.nouns import COUNTED, stem
from verifiers.mathematics.words.units import UNITS
from verifiers.mathematics.words.vocabulary import (
    DECORATIONS,
    DROPPED,
    DROPPED_WITH_ARGUMENT,
    ENGLISH,
    FUNCTIONS,
    GREEK,
    MATH_STYLES,
    NAMED,
    OPERATORS,
    PLAIN_NAMES,
    TEXT_STYLES,
    UNIT_WORDS,
)

MAX_TOKENS = 600
MAX_DIGITS = 2_500
MAX_EXPONENT = 20_000
MAX_NESTING = 24


class Unreadable(Exception):
    """The text is not an answer that this grammar knows; the message says why."""


class Token(NamedTuple):
    """kind: num, sym, word, cmd, op, bad. `spaced` says that space stands before it. Number values are nodes."""

    kind: str
    value: Any
    spaced: bool
    whole: bool = False
    """A number of digits only: what may be the whole part of a mixed number."""


MASTER = re.compile(
    r"(?P<space>(?:\s|~|\\[,;:! ]|\\(?:q?quad|thinspace|medspace|thickspace|enspace)(?![A-Za-z]))+)"
    r"|(?P<repeating>(?P<rwhole>\d*)\.(?:(?P<rhead>\d*)(?:\\(?:overline|bar|dot|widebar)\{?(?P<r1>\d+)\}?"
    r"(?:(?P<rmid>\d*)\\dot\{?(?P<r2>\d)\}?)?|\((?P<r3>\d+)\))|(?P<shown>\d{2,40})(?:\.{3}|\\(?:l"
    r"|c)?dots(?![A-Za-z]))))"
    r"|(?P<num>(?:(?P<grouped>\d{1,3}(?:(?:,|\{,\}|,?\\[,! ;]|\\thinspace |[ ~'])\d{3})+(?!\d)"
    r"|\d{1,2}(?:,\d{2})+,\d{3}(?!\d)"
    r"|\d{1,3}(?:\.\d{3}){2,}(?![\d.]))|(?P<digits>\d+))?(?P<fraction>\.\d+)?(?(grouped)|(?(digits)|(?(fraction)"
    r"|(?!))))"
    r"(?:[eE](?P<exponent>[+-]?\d{1,9})(?![A-Za-z\d]))?)"
    r"|\\(?P<cmd>[A-Za-z]+)\*?|\\(?P<escaped>.)|(?P<letters>[^\W\d_]+)"
    r"|(?P<op>\*\*|<=|>=|!=|==|:=|=>|->|\.\.\.|.)",
    re.DOTALL,
)
BOLD = re.compile(r"^\\(?:mathbf|boldsymbol|bm|mathrm|bf)\s?\{?\s*(\\?[A-Za-z]+)\s*\}?$")
INSIDE_SEPARATOR = re.compile(r"\d,\s|;|,\\")
TIMES_TEN = re.compile(r"\s*10\s*(?:\^|\*\*)")
ARGUMENT_DIGIT = re.compile(r"\s*(\d)")
OPENING, CLOSING = frozenset("(["), frozenset(")]")
SUMMING = frozenset({"+", "-", "*", "±"})
ESCAPED = {"{": "set{", "}": "set}", "%": "%", "$": "$", "|": "||", "\\": "\\\\", "&": "&", "#": "#", "_": "_"}


def tokens(text: str, text_mode: bool = False, nesting: int = 0) -> list[Token]:
    """The tokens of `text`, which is plain LaTeX in ASCII (see `ascii_latex`).

    Raises: Unreadable on unknown commands, unclosed groups and too many tokens.
    """
    if nesting > MAX_NESTING:
        raise Unreadable("too_deep")
    out: list[Token] = []
    at, size, depth, spaced = 0, len(text), 0, False
    split_inside = INSIDE_SEPARATOR.search(text) is None
    while at < size:
        match = MASTER.match(text, at)
        if match is None or len(out) > MAX_TOKENS:
            raise Unreadable("too_long")
        kind, at = match.lastgroup, match.end()
        if match["space"] is not None:
            spaced = True
            continue
        if match["num"] is not None:
            at = _number(match, depth > 0 and split_inside, spaced, out)
        elif match["repeating"] is not None:
            out.append(Token("num", _repeating(match), spaced))
        elif match["letters"] is not None:
            _letters(match["letters"], text, at, spaced, text_mode, out)
        elif match["cmd"] is not None:
            at = _command(match["cmd"], text, at, spaced, nesting, out)
        else:
            said = ESCAPED.get(match["escaped"], "bad") if match["escaped"] is not None else match["op"]
            depth += (said in OPENING or said == "set{") - (said in CLOSING or said == "set}")
            out.append(Token("bad" if said == "bad" else "op", "^" if said == "**" else said, spaced))
        spaced = False
        del kind
    return out


def _number(match: re.Match[str], inside: bool, spaced: bool, out: list[Token]) -> int:
    """Add the matched number; inside brackets a bare comma separates, so only its first group is taken. Its end."""
    grouped, digits, fraction, exponent = match["grouped"], match["digits"], match["fraction"], match["exponent"]
    if grouped is not None and out and out[-1].value == "_" and out[-1].kind == "op":
        grouped_by = re.match(r"\d+", grouped)
        assert grouped_by is not None
        out.append(Token("num", num(int(grouped_by[0])), spaced, True))
        return match.start() + grouped_by.end()
    if grouped is not None and inside and "," in grouped and "{" not in grouped and "\\" not in grouped:
        first = re.match(r"\d+", grouped)
        assert first is not None
        out.append(Token("num", num(int(first[0])), spaced, True))
        return match.start() + first.end()
    if grouped is not None:
        digits = re.sub(r"\D", "", grouped)
    digits = digits or "0"
    if len(digits) > MAX_DIGITS or (fraction is not None and len(fraction) > MAX_DIGITS):
        raise Unreadable("too_many_digits")
    if fraction is None and exponent is None:
        out.append(Token("num", num(int(digits)), spaced, True))
        return match.end()
    power = int(exponent or 0)
    if abs(power) > MAX_EXPONENT:
        raise Unreadable("exponent_too_large")
    places = len(fraction) - 1 if fraction else 0
    value = Fraction(int(digits + (fraction[1:] if fraction else "")), 10**places)
    if exponent is not None:
        value = value * 10**power if power >= 0 else value / 10**-power
    out.append(Token("num", Node("dec", (value, places - power)), spaced))
    return match.end()


def _repeating(match: re.Match[str]) -> Node:
    whole, head = match["rwhole"] or "0", match["rhead"] or ""
    block = match["r3"] or ((match["r1"] or "") + (match["rmid"] or "") + (match["r2"] or ""))
    if match["shown"] is not None:
        head, block = _period(match["shown"])
    if len(whole) + len(head) + len(block) > 300:
        raise Unreadable("too_many_digits")
    if not block:
        return Node("dec", (Fraction(int(whole + head), 10 ** len(head)), len(head)))
    shifted, short = int(whole + head + block), int(whole + head)
    return num(Fraction(shifted - short, (10 ** len(block) - 1) * 10 ** len(head)))


def _period(shown: str) -> tuple[str, str]:
    """(head, repeated block) of decimals shown before an ellipsis; no block if no period is seen at least twice."""
    for start in range(len(shown)):
        rest = shown[start:]
        for size in range(1, len(rest) // 2 + 1):
            block = rest[:size]
            if (
                len(rest) >= max(2 * size, 3 if size == 1 and start == 0 else 2)
                and rest == (block * len(rest))[: len(rest)]
            ):
                return shown[:start], block
    return shown, ""


def _letters(run: str, text: str, end: int, spaced: bool, text_mode: bool, out: list[Token]) -> None:
    if run in {"x", "X"} and out and out[-1].kind == "num" and TIMES_TEN.match(text, end):
        out.append(Token("op", "*", spaced))
        return
    if text_mode or not run.isascii():
        out.append(Token("word", run, spaced))
        return
    if len(run) == 1:
        out.append(Token("sym", run, spaced))
        return
    lower = run.lower()
    if lower in PLAIN_NAMES:
        out.append(Token("cmd", PLAIN_NAMES[lower], spaced))
    elif (
        run in UNIT_WORDS
        or lower in ENGLISH
        or len(run) > 5
        or (len(run) > 3 and stem(lower) in COUNTED)
        or not _is_product(run)
    ):
        for name in ("sqrt", "pi", "log", "ln", "sin", "cos", "tan"):
            if lower.startswith(name) and len(run) == len(name) + 1 and run not in UNIT_WORDS and lower not in ENGLISH:
                out.append(Token("cmd", name, spaced))
                out.append(Token("sym", run[-1], False))
                return
        if len(run) > 2 and lower.endswith("pi") and _is_product(run[:-2]):
            out.extend(Token("sym", c, spaced) for c in run[:-2])
            out.append(Token("cmd", "pi", False))
            return
        out.append(Token("word", run, spaced))
    else:
        out.extend(Token("sym", c, spaced and i == 0) for i, c in enumerate(run))


def _is_product(run: str) -> bool:
    """Whether a run of letters reads as a product of variables: short, each letter once, or hardly any vowel."""
    return len(run) <= 3 or (len(set(run)) == len(run) and not set(run.lower()) & set("eiou"))


def _command(name: str, text: str, at: int, spaced: bool, nesting: int, out: list[Token]) -> int:
    if name in OPERATORS:
        out.append(Token("op", OPERATORS[name], spaced))
    elif name in {"left", "right", "bigl", "bigr", "Bigl", "Bigr", "biggl", "biggr"} and text[at : at + 1] == ".":
        return at + 1
    elif name in DROPPED:
        pass
    elif name in DROPPED_WITH_ARGUMENT:
        for _ in range(DROPPED_WITH_ARGUMENT[name]):
            _, at = argument(text, at)
    elif name in TEXT_STYLES or name in MATH_STYLES:
        inner, at = argument(text, at)
        _styled(name, inner, spaced, nesting, out, text[at : at + 1])
    elif name == "mathbb":
        inner, at = argument(text, at)
        out.append(Token("cmd", f"mathbb{inner.strip()}", spaced))
    elif name in DECORATIONS:
        inner, at = argument(text, at)
        bare = BOLD.sub(r"\1", inner.strip()).lstrip("\\")
        known = bare.isalpha() and bare.isascii()
        hat = "vec" if bare in {"i", "j", "k", "imath", "jmath"} else name
        out.append(Token("sym", f"{hat} {bare.replace('math', '')}", spaced) if known else Token("bad", name, spaced))
    elif name in GREEK and not (name in {"Gamma", "zeta"} and text[at : at + 1] == "("):
        out.append(Token("sym", GREEK[name], spaced))
    elif name in FUNCTIONS:
        out.append(Token("cmd", name, spaced))
        if name in {"frac", "dfrac", "tfrac", "cfrac", "binom", "dbinom", "tbinom", "sqrt", "cbrt", "fourthroot"}:
            return _digit_arguments(2 if name[-4:] in {"frac", "inom"} else 1, text, at, out)
    elif name in {"begin", "end"}:
        inner, at = argument(text, at)
        inner = inner.strip().rstrip("*")
        if name == "begin" and inner in {"array", "tabular"}:
            _, at = argument(text, at)
        out.append(Token("cmd", f"{name} {inner}", spaced))
    else:
        out.append(Token("bad", name, spaced))
    return at


def _digit_arguments(most: int, text: str, at: int, out: list[Token]) -> int:
    r"""Split the digits of `\frac12`, which are arguments of one digit each, off what follows. Where to go on."""
    for _ in range(most):
        digit = ARGUMENT_DIGIT.match(text, at)
        if digit is None:
            return at
        out.append(Token("num", num(int(digit[1])), False, True))
        at = digit.end()
    return at


def _styled(name: str, inner: str, spaced: bool, nesting: int, out: list[Token], following: str) -> None:
    content = inner.strip()
    if name in MATH_STYLES and len(content) == 1 and content.isalpha():
        vector = name in {"mathbf", "boldsymbol", "bm"} and content in "ijk"
        is_term = out[-1].value in {"+", "-"} if out else following in {"+", "-"}  # the C of + C, no coulombs
        kind = "word" if name in {"mathrm", "operatorname"} and content in UNITS and not is_term else "sym"
        out.append(Token(kind, f"vec {content}" if vector else content, spaced))
        return
    if content in NAMED and len(content) > 1 and (content not in UNITS or name == "operatorname"):
        out.append(Token("cmd", content, spaced))
        return
    inside = tokens(inner, True if name in TEXT_STYLES else content.isalpha(), nesting + 1)
    if not inside:
        return
    if (
        len(inside) == 1
        or (name in TEXT_STYLES and not any(t.value in SUMMING for t in inside))
        or _is_unit_phrase(inside)
    ):
        out.append(inside[0]._replace(spaced=True))
        out.extend(inside[1:])
    else:
        out.append(Token("op", "{", spaced))
        out.extend(inside)
        out.append(Token("op", "}", False))


def _is_unit_phrase(inside: list[Token]) -> bool:
    return all(t.kind in {"word", "sym"} or t.value in {"/", "^", ","} or t.kind == "num" for t in inside) and any(
        t.kind == "word" for t in inside
    )


def argument(text: str, at: int) -> tuple[str, int]:
    """The argument of a command that starts at `at` (a group in braces or one token), and where it ends.

    Raises: Unreadable if there is none or its brace is never closed.
    """
    while at < len(text) and text[at] in " \n\t~":
        at += 1
    if at >= len(text):
        raise Unreadable("missing_argument")
    if text[at] != "{":
        command = re.compile(r"\\[A-Za-z]+|\\.|.", re.DOTALL).match(text, at)
        assert command is not None
        return command[0], command.end()
    depth, start = 0, at + 1
    while at < len(text):
        c = text[at]
        if c == "\\":
            at += 2
            continue
        depth += (c == "{") - (c == "}")
        at += 1
        if depth == 0:
            return text[start : at - 1], at
    raise Unreadable("unclosed_group")
