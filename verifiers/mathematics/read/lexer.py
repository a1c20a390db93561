"""The lexer: answer text to tokens. Numbers become exact here; styles, spacing and sizes are dropped."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, NamedTuple

from verizero.verifiers.mathematics.read.syntax_tree import Node, num
from verizero.verifiers.mathematics.words import vocabulary
from verizero.verifiers.mathematics.words.nouns import COUNTED, stem
from verizero.verifiers.mathematics.words.vocabulary import UNITS, words_of

# Bounds on hostile answers. Without them 10^20000 or a number of a million digits would take seconds to build.
MAX_TOKENS = 600
MAX_DIGITS = 2_500
MAX_EXPONENT = 20_000
MAX_NESTING = 24
MAX_REPEATING_DIGITS = 300


class Unreadable(Exception):
    """The text is not an answer that this grammar knows; the message gives the reason."""


class Token(NamedTuple):
    """A token of kind num, sym, word, cmd, op or bad. The value of a number is its node."""

    kind: str
    value: Any
    spaced: bool
    """True if space precedes it."""
    whole: bool = False
    """True for a number of digits only, which may be the whole part of a mixed number."""


# The alternatives are tried in this order, so that a repeating decimal is not cut into a number and an ellipsis. Every
# repetition is bounded or cannot overlap with what follows it: the time is linear in the length of the answer.
MASTER = re.compile(
    r"(?P<space>(?:\s|~|\\[,;:! ]|\\(?:q?quad|thinspace|medspace|thickspace|enspace)(?![A-Za-z]))+)"
    # 0.1\overline{6}, 0.\dot{1}4\dot{2}, 0.(3), 0.333...
    r"|(?P<repeating>(?P<rwhole>\d*)\.(?:(?P<rhead>\d*)(?:\\(?:overline|bar|dot|widebar)\{?(?P<r1>\d+)\}?"
    r"(?:(?P<rmid>\d*)\\dot\{?(?P<r2>\d)\}?)?|\((?P<r3>\d+)\))|(?P<shown>\d{2,40})(?:\.{3}|\\(?:l"
    r"|c)?dots(?![A-Za-z]))))"
    # Grouped digits: 1,000,000 in any separator, 12,34,567 of India, 1.000.000 of Europe from two groups on.
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
LEADING_DIGITS = re.compile(r"\d+")
TIMES_TEN = re.compile(r"\s*10\s*(?:\^|\*\*)")
ARGUMENT_SIGN = re.compile(r"\s*(?:(\d)|[A-Za-z])")
ONE_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|.", re.DOTALL)
OPENING, CLOSING = words_of("( [ set{"), words_of(") ] set}")
SUMMING = words_of("+ - * × ±")
UNIT_MACRO = re.compile(r"(?:\s|\\[()])*\\(Omega|mu)(?![A-Za-z])(?:\s|\\[()])*")
"""A letter of a unit inside a style: \\mathrm{k\\Omega}."""
SIZED = words_of("left right bigl bigr Bigl Bigr biggl biggr")
ESCAPED = {"{": "set{", "}": "set}", "%": "%", "$": "$", "|": "|", "\\": "\\\\", "&": "&", "#": "#", "_": "_"}
RUN_INTO_LETTER = ("sqrt", "pi", "log", "ln", "sin", "cos", "tan")
NUM_DIGIT_ARGUMENTS = dict.fromkeys(words_of("frac dfrac tfrac cfrac binom dbinom tbinom"), 2)
NUM_DIGIT_ARGUMENTS |= dict.fromkeys(words_of("sqrt cbrt fourthroot"), 1)


def tokens(text: str, text_mode: bool = False, nesting: int = 0) -> list[Token]:
    """Return the tokens of plain LaTeX in ASCII. Raises: Unreadable, e.g. for commands that are unknown."""
    if nesting > MAX_NESTING:
        raise Unreadable("too_deep")
    out: list[Token] = []
    at, depth, spaced = 0, 0, False
    # In "(1,000, 2)" or "(1,000; 2)" another mark separates the items, so that a bare comma may group digits.
    split_inside = INSIDE_SEPARATOR.search(text) is None
    while at < len(text):
        match = MASTER.match(text, at)
        if match is None or len(out) > MAX_TOKENS:
            raise Unreadable("too_long")
        at = match.end()
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
            sign = ESCAPED.get(match["escaped"], "bad") if match["escaped"] is not None else match["op"]
            depth += (sign in OPENING) - (sign in CLOSING)
            out.append(Token("bad" if sign == "bad" else "op", "^" if sign == "**" else sign, spaced))
        spaced = False
    return out


def _number(match: re.Match[str], inside: bool, spaced: bool, out: list[Token]) -> int:
    """Add the matched number to `out` and return where it ends; `inside` brackets a bare comma separates items."""
    grouped, digits, fraction, exponent = match["grouped"], match["digits"], match["fraction"], match["exponent"]
    if grouped is not None:
        # The subscript in a_1,000 ends at the comma; so does the first coordinate of (1,000).
        is_subscript = bool(out) and out[-1].value == "_" and out[-1].kind == "op"
        if is_subscript or (inside and "," in grouped and "{" not in grouped and "\\" not in grouped):
            first = LEADING_DIGITS.match(grouped)
            assert first is not None
            out.append(Token("num", num(int(first[0])), spaced, True))
            return match.start() + first.end()
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
    decimals = fraction[1:] if fraction else ""
    value = Fraction(int(digits + decimals), 10 ** len(decimals)) * Fraction(10) ** power
    # The decimals shown are kept with the value, because they tell how far a rounded gold may be from an answer.
    out.append(Token("num", Node("dec", (value, len(decimals) - power)), spaced))
    return match.end()


def _repeating(match: re.Match[str]) -> Node:
    """Return the fraction that a repeating decimal is equal to; a decimal cut by an ellipsis if nothing repeats."""
    whole, head = match["rwhole"] or "0", match["rhead"] or ""
    block = match["r3"] or ((match["r1"] or "") + (match["rmid"] or "") + (match["r2"] or ""))
    if match["shown"] is not None:
        head, block = _period(match["shown"])
    if len(whole) + len(head) + len(block) > MAX_REPEATING_DIGITS:
        raise Unreadable("too_many_digits")
    if not block:
        return Node("dec", (Fraction(int(whole + head), 10 ** len(head)), len(head)))
    # x = 0.1666...: 100 x - 10 x leaves the whole number 16 - 1, and x = 15 / 90.
    shifted, short = int(whole + head + block), int(whole + head)
    return num(Fraction(shifted - short, (10 ** len(block) - 1) * 10 ** len(head)))


def _period(shown: str) -> tuple[str, str]:
    """Return (head, repeated block) of decimals before an ellipsis; no block if no period is seen at least twice."""
    for start in range(len(shown)):
        rest = shown[start:]
        for size in range(1, len(rest) // 2 + 1):
            block = rest[:size]
            # A single digit must be seen three times, 0.333..., as 0.33... may as well be cut.
            enough = max(2 * size, 3 if size == 1 and start == 0 else 2)
            if len(rest) >= enough and rest == (block * len(rest))[: len(rest)]:
                return shown[:start], block
    return shown, ""


def _letters(run: str, text: str, end: int, spaced: bool, text_mode: bool, out: list[Token]) -> None:
    """Add a run of letters to `out`: a word, a command without its backslash, or a product of variables."""
    lower = run.lower()
    if lower == "x" and out and out[-1].kind == "num" and TIMES_TEN.match(text, end):
        out.append(Token("op", "*", spaced))  # 3 x 10^8
    elif text_mode or not run.isascii():
        out.append(Token("word", run, spaced))
    elif len(run) == 1:
        out.append(Token("sym", run, spaced))
    elif lower in vocabulary.PLAIN_NAMES:
        out.append(Token("cmd", vocabulary.PLAIN_NAMES[lower], spaced))
    elif _is_word(run) and not _is_split_by_power(run, text, end, out):
        name = next((n for n in RUN_INTO_LETTER if lower.startswith(n) and len(run) == len(n) + 1), None)
        if name is not None and run not in vocabulary.UNIT_WORDS and lower not in vocabulary.ENGLISH:
            out += [Token("cmd", name, spaced), Token("sym", run[-1], False)]  # sinx
        elif len(run) > 2 and lower.endswith("pi") and _is_product(run[:-2]):
            out += [*(Token("sym", c, spaced) for c in run[:-2]), Token("cmd", "pi", False)]  # npi
        else:
            out.append(Token("word", run, spaced))
    else:
        out += [Token("sym", c, spaced and i == 0) for i, c in enumerate(run)]


def _is_split_by_power(run: str, text: str, end: int, out: list[Token]) -> bool:
    """True for the TB of A^TB, and for the Be of Be^x."""
    is_raised = bool(out) and out[-1].value == "^" and run in vocabulary.UNIT_WORDS
    return is_raised or (len(run) == 2 and run[1] == "e" and text.startswith("^", end))


def _is_word(run: str) -> bool:
    lower = run.lower()
    is_known = run in vocabulary.UNIT_WORDS or lower in vocabulary.ENGLISH
    return is_known or len(run) > 5 or (len(run) > 3 and stem(lower) in COUNTED) or not _is_product(run)


def _is_product(run: str) -> bool:
    """True if a run of letters reads as a product of variables: short, each letter once, or hardly any vowel."""
    return len(run) <= 3 or (len(set(run)) == len(run) and not set(run.lower()) & set("eiou"))


def _command(name: str, text: str, at: int, spaced: bool, nesting: int, out: list[Token]) -> int:
    """Add the command `name`, which ends at `at`, to `out` and return where reading continues."""
    if name in vocabulary.OPERATORS:
        out.append(Token("op", vocabulary.OPERATORS[name], spaced))
    elif name in SIZED and text[at : at + 1] == ".":
        return at + 1  # \left. is an invisible bracket
    elif name in vocabulary.DROPPED:
        pass
    elif name in vocabulary.DROPPED_WITH_ARGUMENT:
        for _ in range(vocabulary.DROPPED_WITH_ARGUMENT[name]):
            _, at = argument(text, at)
    elif name in vocabulary.TEXT_STYLES or name in vocabulary.MATH_STYLES:
        inner, at = argument(text, at)
        _styled(name, inner, spaced, nesting, out, text[at : at + 1])
    elif name == "named":
        inner, at = argument(text, at)
        out.append(Token("sym", inner, spaced))
    elif name == "mathbb":
        inner, at = argument(text, at)
        is_operator = inner.strip() in {"E", "P", "V"}  # expectation, probability, variance
        out.append(
            Token("sym", inner.strip(), spaced) if is_operator else Token("cmd", f"mathbb{inner.strip()}", spaced)
        )
    elif name in vocabulary.DECORATIONS:
        inner, at = argument(text, at)
        bare = BOLD.sub(r"\1", inner.strip()).lstrip("\\")
        known = bare.isalpha() and bare.isascii()
        # Unit vectors are one symbol in every decoration; other letters keep theirs as a part of the name.
        hat = "vec" if bare in {"i", "j", "k", "imath", "jmath"} else vocabulary.SAME_DECORATION.get(name, name)
        out.append(Token("sym", f"{hat} {bare.replace('math', '')}", spaced) if known else Token("bad", name, spaced))
    elif name in vocabulary.GREEK:
        out.append(Token("sym", vocabulary.GREEK[name], spaced))
    elif name in vocabulary.FUNCTIONS:
        out.append(Token("cmd", name, spaced))
        return _digit_arguments(NUM_DIGIT_ARGUMENTS.get(name, 0), text, at, out)
    elif name in {"begin", "end"}:
        inner, at = argument(text, at)
        inner = inner.strip().rstrip("*")
        if name == "begin" and inner in {"array", "tabular"}:
            _, at = argument(text, at)  # the alignment of the columns
        out.append(Token("cmd", f"{name} {inner}", spaced))
    else:
        out.append(Token("bad", name, spaced))
    return at


def _digit_arguments(most: int, text: str, at: int, out: list[Token]) -> int:
    r"""Add the signs of `\frac12` and `\frac kn`, an argument each, and return where reading continues."""
    for _ in range(most):
        sign = ARGUMENT_SIGN.match(text, at)
        if sign is None:
            return at
        is_digit = sign[1] is not None
        out.append(Token("num", num(int(sign[1])), False, True) if is_digit else Token("sym", sign[0].strip(), False))
        at = sign.end()
    return at


def _styled(name: str, inner: str, spaced: bool, nesting: int, out: list[Token], following: str) -> None:
    """Add the argument of a style to `out`: a letter, a function, words, or a group of tokens."""
    content = inner.strip(" \t\n~")
    if name in vocabulary.MATH_STYLES and len(content) == 1 and content.isalpha():
        bold = ("vec " if content in "ijk" else "bold ") if name in vocabulary.BOLD else ""
        is_term = out[-1].value in {"+", "-"} if out else following in {"+", "-"}  # the C of + C, no coulombs
        kind = "word" if name in {"mathrm", "operatorname"} and content in UNITS and not is_term else "sym"
        out.append(Token(kind, bold + content, spaced))
        return
    if content in vocabulary.NAMED and len(content) > 1 and (content not in UNITS or name == "operatorname"):
        out.append(Token("cmd", content, spaced))
        return
    if "\\" in inner:
        inner = UNIT_MACRO.sub(lambda m: "Ω" if m[1] == "Omega" else "μ", inner)
    inside = tokens(inner, True if name in vocabulary.TEXT_STYLES else content.isalpha(), nesting + 1)
    if not inside:
        return
    is_prose = name in vocabulary.TEXT_STYLES and not any(t.value in SUMMING for t in inside)
    kinds = {t.kind for t in inside if t.value not in {"/", "^", ","}}
    is_unit_phrase = "word" in kinds and kinds <= {"word", "sym", "num"}
    if len(inside) == 1 or is_prose or is_unit_phrase:
        # A style separates its words from what precedes them, with or without a space in the source.
        out += [inside[0]._replace(spaced=True), *inside[1:]]
    else:
        out += [Token("op", "{", spaced), *inside, Token("op", "}", False)]


def argument(text: str, at: int) -> tuple[str, int]:
    """Return the argument of a command that starts at `at`, a group in braces or a single token, and where it ends.

    Raises: Unreadable if there is none or its brace is never closed.
    """
    while at < len(text) and text[at] in " \n\t~":
        at += 1
    if at >= len(text):
        raise Unreadable("missing_argument")
    if text[at] != "{":
        token = ONE_TOKEN.match(text, at)
        assert token is not None
        return token[0], token.end()
    end = end_of_group(text, at)
    if end is None:
        raise Unreadable("unclosed_group")
    return text[at + 1 : end - 1], end


def end_of_group(text: str, at: int) -> int | None:
    """Return where the group that opens at `at` ends, behind its brace; None if it is never closed."""
    depth = 0
    while at < len(text):
        if text[at] == "\\":
            at += 2  # an escaped brace opens nothing
            continue
        depth += (text[at] == "{") - (text[at] == "}")
        at += 1
        if depth == 0:
            return at
    return None
