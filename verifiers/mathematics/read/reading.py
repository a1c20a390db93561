"""The reading of an answer: its text cleaned, as plain words, and as a tree."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from verizero.verifiers.mathematics.read import clock
from verizero.verifiers.mathematics.read.cursor import bare
from verizero.verifiers.mathematics.read.lexer import Unreadable, end_of_group, tokens
from verizero.verifiers.mathematics.read.parser import parse
from verizero.verifiers.mathematics.read.syntax_tree import EMPTY, INF, ONE, REALS, Node, neg, num, sym
from verizero.verifiers.mathematics.words import spelled_out
from verizero.verifiers.mathematics.words.characters import ascii_latex, formula_of
from verizero.verifiers.mathematics.words.nouns import with_named_labels
from verizero.verifiers.mathematics.words.phrases import without_phrases
from verizero.verifiers.mathematics.words.spelled_out import NUMBERS

PLAIN_NUMBER = re.compile(r"[+-]?\d{1,400}")
OUTSIDE = ' \t\n\r*`"'
DELIMITERS = re.compile(
    r"\\\(|\\\)|\\\[(?!\d*(?:\.\d+)?(?:ex|em|pt)\])|(?<!\\)\\\]|\\begin\{(?:equation|math|displaymath)\*?\}"
    r"|\\end\{(?:equation|math|displaymath)\*?\}"
)
DOLLAR = re.compile(r"(?<!\\)\$")
INCHES = re.compile(r"(\d'\s?\d[\d.]*)\"")
NEXT_EQUATION = re.compile(r"(?<!\\)\$\s+\$(?=[A-Za-z][\w{}]*\s*=)")
TRAILING = re.compile(r"(?:\s|\\[,;:! ]|~|\\\\|[.,;:](?<!\\[,;:])|\\q?quad)+$")
TEXT_WRAPPER = re.compile(r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|mbox|hbox|mathrm)\s?\{")
TEXT_STOP = re.compile(r"\\text(?:bf|it|rm)?\{\s*[.,;]\s*\}$|(?<=[a-z])\.(?=\s*\}$)")
GROUPED_SIGN = re.compile(r"\{(\\(?:cdot|times|colon|%)|[+*/=<>:-])\}|(?<=\d)\{(\\[,;:! ]| )\}")
ABBREVIATION = re.compile(r"\b(sq|cu|ft|in|yd|oz|lb|lbs|hr|hrs|min|sec|mi)\.(?=[\s}])")
THEREFORE = re.compile(
    r"(?:\\text\{)?\s*(?:therefore|thus|hence|so|exactly|only|(?:the\s)?value(?=\s*\}|\s*[-\d]))(?:\s*,?\s*\}(?![_^])\s*,?\s*|\s*,?\s+)",
    re.IGNORECASE,
)
IN_TOTAL = re.compile(r"(?:\\?\s)*(?:\\text\{)?\s*(?:\b(?:in total|altogether|left|remaining)|\(exact(?:ly)?\))\s*\}?$")
ROW_SPACE = re.compile(r"\\\\\s?\[\s?-?[\d.]{1,6}\s?(?:pt|em|ex|mm|cm|in)\s?\]")
CONTINUED = re.compile(r"\\\\\s*&?\s*(?==|\\(?:approx|equiv|implies|Rightarrow)(?![A-Za-z]))")
"""The start of a line that continues a derivation with a sign: x &= 1 + 2 \\\\ &= 3."""
QUAD = re.compile(r"(?<=[\w})\]])(?:\s|~|\\[,; ])*\\q?quad(?:\s|~|\\[,; ])*(?=[\w\\({\[-])")
EQUATION = re.compile(r"\s*(?:\\left)?(\\?[A-Za-z]{1,9}(?:_(?:\w|\{\w{1,9}\}))?'{0,2}(?:\([^()=]{1,20}\))?)\s*=(?!=)")
"""The beginning of an equation that is solved for a name."""
SPACE = re.compile(r"(?:\\[,;:! ]|\\(?:q?quad|enspace)(?![A-Za-z])|\\hspace\*?\s?\{[^{}]{1,9}\}|~|\s)+")
CASES = re.compile(r"\\begin\{([dr]?cases)\}.*?\\end\{\1\}", re.DOTALL)
LEFT_BRACE = re.compile(
    r"(?:\\left\s*)?\\[l{](?:brace)?\s*\\begin\{(array|aligned|matrix|gathered)\}(?:\{[lcr| ]*\})?"
    r"((?:(?!\\begin).)*?)\\end\{\1\}(?:\s*\\right\s*\.)?(?!\s*(?:\\right)?\s*\\[r}])",
    re.DOTALL,
)
"""An environment with a brace on its left only, which is one of cases."""
SLANTED = re.compile(r"(?:\{\})?\^\{?(\d{1,9})\}?\s?(?:\\!)*/(?:\\!)*_\{?(\d{1,9})\}?")
"""A fraction set by hand: ^1/_2."""
NEGATED = re.compile(r"\\not\s*(=|\\in(?![A-Za-z]))")
WIDE = re.compile(r"\\q?quad(?![A-Za-z])")
DIGIT = re.compile(r"\d")
BRACE_COMMA = re.compile(r"(?<=\d)(?:\\(?:text|textnormal|mathrm|mbox|hbox))?\{,\}(?=\d)")
PLAIN_ROOT = re.compile(r"\\root\s*\{?\s*(\w{1,9})\s*\}?\s*\\of\b\s*(?=[\w{\\])")
RUPEES = re.compile(r"\\(?:text|textnormal|mathrm|mbox)\{\s*Rs\.?\s*\}(?:\s|~|\\[,;: ])*(?=\d)")
BOLD_START = re.compile(r"^\s{0,3}\*\*([^*]+)\*\*(?=[\s.,;:!)]|$)")
LEFT_OUT = re.compile(r",\s?\.\.\.\s?,")
DIGIT_GROUPS = re.compile(r"(?<=\d) +(?=\d)")
DECIMAL_COMMA = re.compile(r"(?<![\d,.])(\d+),(\d+)(?![\d,.])")
NUMBER_AND_FRACTION = re.compile(r"(?<=\d)\s*(?:\\text\{\s*)?\band\b(?:\s*\})?\s*(?=\d+\s?/\s?\d|\\[dt]?frac)")
COMBINATION = re.compile(
    r"(?:\{\})?(?:_|\^)\{?(\d{1,4}|n)\}?\s?(?:\\mathrm\{)?([CP])\}?_?\{?(\d{1,4}|k|r)\}?(?![\w^])"
    r"|(?:\\mathrm\{)?\b([CP])\}?_\{?(\d{1,4}|n)\}?\^\{?(\d{1,4}|k|r)\}?(?!\w)|\b(\d{1,4})([CP])(\d{1,4})\b"
)
BASE = re.compile(
    r"\(?\s*(-?[0-9A-Fa-f]{1,300})\s*\)?\s*(?:_\s*\(?\s*(?:base\s*)?(\d{1,2}|[a-z]+)\s*\)?"
    r"|\(?\s*(?:in\s+)?base[\s-]+(\d{1,2}|[a-z]+)\s*\)?|\s\(?(?:in\s+)?(binary|octal|hexadecimal|hex)\)?)"
)
IN_BASE = re.compile(r"base|binary|octal|hex")
PREFIXED_BASE = re.compile(r"0([box])([0-9A-Fa-f]{1,300})", re.IGNORECASE)
BASES = {word: value for word, value in NUMBERS.items() if value in (*range(2, 11), 12, 16)}
BASES |= {"binary": 2, "octal": 8, "hex": 16, "hexadecimal": 16, "b": 2, "o": 8, "x": 16}
WORD_RATIO = re.compile(r"([\d./]{1,20})(?: is)? to ([\d./]{1,20})(?: to ([\d./]{1,20}))?")
APPROXIMATE = re.compile(
    r"^(?:\\(?:approx|simeq|doteq|thickapprox)(?![A-Za-z])|≈|~\s?(?=\d)|about\s|approximately\s|roughly\s)\s*"
    r"|(?:\\ldots|\\dots|\.\.\.)$"
)
NAMED = re.compile(r"\\text\{\s*([A-Za-z]{3,15})\s*\}\s*(-?\d[\d.]*)")
NAMED_ALL = re.compile(rf"{NAMED.pattern}(?:\s*(?:,|\\text\{{,?\s*and\s*\}}),?\s*{NAMED.pattern})+")
"""Numbers, each behind its name: \\text{width } 4, \\text{length } 9. A lone one may be a title: Apollo 11."""
MAX_COUNTED = 60
"""Bound on the characters of a number in words with what it counts."""
X = sym("x")
KINDS = {
    "none": EMPTY,
    "infinity": INF,
    "-infinity": neg(INF),
    "reals": REALS,
    "integers": Node("const", ("Z",)),
    "positives": Node("rel", (X, ">", num(0))),
    "negatives": Node("rel", (X, "<", num(0))),
    "nonnegatives": Node("rel", (X, ">=", num(0))),
}


@dataclass
class Reading:
    """The cleaned text of an answer. Trees and words are made when first asked for."""

    text: str
    problem: str = ""
    """The reason why there is no tree, once `tree` was asked for."""

    @cached_property
    def plain(self) -> str:
        """Return the text in lower case without styles, articles and outer punctuation."""
        return spelled_out.plain(self.text)

    @cached_property
    def nothing(self) -> str | None:
        """Return the kind of non-number that the words name: none, dne, infinity, reals, ..."""
        return spelled_out.nothing(self.plain)

    @cached_property
    def time(self) -> clock.Time | None:
        """Return the time of day, if the text is one."""
        return clock.time_of(self.plain)

    @cached_property
    def date(self) -> clock.Date | None:
        """Return the date, if the text is one."""
        return clock.date_of(self.plain)

    @cached_property
    def base(self) -> tuple[str, int] | None:
        """Return (digits in upper case, base) of a number written in a base; None for other texts."""
        return base_number(self.text)

    @cached_property
    def chemical(self) -> str | None:
        """Return the text in one spelling if it is a chemical formula or reaction: H2O of `\\text{H}_2\\text{O}`."""
        return formula_of(self.text)

    @cached_property
    def approximate(self) -> bool:
        """True if the text itself says that it is rounded: `\\approx 3.1`, `3.14...`."""
        return APPROXIMATE.search(self.text) is not None

    @cached_property
    def tree(self) -> Node | None:
        """Return the tree, None if the text is not in the grammar."""
        text = self.text
        if PLAIN_NUMBER.fullmatch(text):
            return num(int(text))
        if self.nothing in KINDS and not text.startswith("\\{\\"):
            return KINDS[self.nothing or ""]
        if text.count("=") > 1 and (listed := side_by_side(text)) is not None:
            text = listed
        try:
            return parse(rewritten(text))
        except Unreadable as exc:
            self.problem = str(exc)
            if NAMED_ALL.fullmatch(text):
                return Reading(NAMED.sub(r"\\text{\1}=\2", text)).tree
            # A wide space may separate items, but more often only sets off a unit or a condition: it is tried last.
            if "quad" in text and (parted := QUAD.sub(", ", text)) != text:
                return Reading(parted).tree
        except RecursionError:
            self.problem = "too_deep"
        return _ratio_in_words(self.plain)

    @cached_property
    def marks(self) -> str | None:
        """Return all that is written, in one spelling, of a text that is in no grammar; None if it has no tokens."""
        try:
            return bare(tokens(rewritten(self.text)))
        except Unreadable:
            return None

    @cached_property
    def mixed(self) -> Node | None:
        """Return the tree with "3 and 1/2" read as a mixed number; None if the text has no such thing."""
        joined = NUMBER_AND_FRACTION.sub(" ", self.text) if "and" in self.text else self.text
        return Reading(joined).tree if joined != self.text else None

    @cached_property
    def counted(self) -> Node | None:
        """Return the number in words and what it counts: three days."""
        words = self.plain.split() if self.plain[:1].isalpha() and len(self.plain) < MAX_COUNTED else []
        for cut in range(max(1, len(words) - 2), len(words)):
            parts = spelled_out.number_in_words(" ".join(words[:cut]))
            if parts is not None and parts[1] == 1:
                return Reading(rf"{parts[0]}\text{{ {' '.join(words[cut:])}}}").tree
        return None

    @cached_property
    def number_word(self) -> Node | None:
        """Return the number that is written in words: forty-two."""
        if not self.plain or not self.plain[0].isalpha():
            return None
        bare = self.plain.removesuffix(" percent")
        parts = spelled_out.number_in_words(bare)
        if parts is None:
            return None
        above, below = map(num, parts)
        value = above if below == ONE else Node("div", (above, below))
        return value if bare == self.plain else Node("percent", (value,))


def side_by_side(text: str) -> str | None:
    """Return equations with nothing but space between them as a list; None for any other text.

    Read from left to right, y=2x y=-x would be a chain that ends in -x. A wide space parts equations of any names, a
    narrow one those that are solved for the same name.
    """
    if "\\begin" in text or (first := EQUATION.match(text)) is None:
        return None
    parts, start = [], 0
    for gap in SPACE.finditer(text):
        begins = EQUATION.match(text, gap.end())
        is_wide = "quad" in gap[0] or "hspace" in gap[0] or len(gap[0].strip()) > 3
        if begins is None or gap.start() == 0 or text[: gap.start()].count("{") != text[: gap.start()].count("}"):
            continue
        if is_wide or (begins[1] == first[1] and text[gap.start() - 1] not in "=,;+-*/&"):
            parts.append(text[start : gap.start()].rstrip(",; "))
            start = gap.end()
    return ", ".join([*parts, text[start:]]) if parts else None


def clean(text: str, comma_is_decimal: bool = False) -> str:
    """Return `text` in ASCII LaTeX without math delimiters, outer quotes, emphasis, braces and final punctuation."""
    # Most answers are short, so that a substring test before each pattern decides the speed of the whole grader.
    text = ascii_latex(text)
    if "**" in text[:4]:
        text = BOLD_START.sub(r"\1", text)
    if "..." in text:
        text = LEFT_OUT.sub(r",\\ldots,", text)
    if '"' in text:
        text = INCHES.sub(r"\1''", text)
    if text.startswith("``") and text.endswith("''"):
        text = text[2:-2]
    text = text.strip(OUTSIDE)
    if PLAIN_NUMBER.fullmatch(text):
        return text
    if "\\" in text:
        text = DELIMITERS.sub(" ", text)
    if "$" in text:
        text = _without_dollars(text)
    if text.startswith("~~"):
        return "\\struck " + text  # an answer that is struck through; no grammar knows the command
    while True:  # layers such as **$\text{42.}$** come off one by one
        before = text
        text = text.strip(OUTSIDE)
        if text[:1] == text[-1:] == "_":
            text = text.strip("_")
        wrapper = TEXT_WRAPPER.match(text)
        if wrapper is not None and DIGIT.search(text) and end_of_group(text, wrapper.end() - 1) == len(text):
            text = text[wrapper.end() : -1]
        if text[-1:] in ".,;:!\\~ " or text.endswith(("quad", "\\;", "\\,")):
            text = _trimmed(text)
        text = text.removeprefix(":").removeprefix("'").removesuffix("'") if text[:1] in {":", "'"} else text
        is_group = text.startswith("{") and text.endswith("}") and end_of_group(text, 0) == len(text)
        if is_group and ("," not in text or "=" in text):  # {1, 2} is a set
            text = text[1:-1]
        if text == before:
            break
    if text.endswith("}"):
        text = TEXT_STOP.sub("", text)
    if text[:1] in "\\TtHhSsEeOo" and (opening := THEREFORE.match(text)) is not None:
        text = text[opening.end() :]
    if "\\of" in text:
        text = PLAIN_ROOT.sub(r"\\sqrt[\1]", text)
    if "Rs" in text:
        text = RUPEES.sub("Rs ", text)
    if text.startswith("\\text{US}"):
        text = text[9:].lstrip()
    if text.startswith(("US\\$", "Rs.")):
        text = text[2:] if text[0] == "U" else "Rs " + text[3:]
    if "." in text and "text" in text:
        text = ABBREVIATION.sub(r"\1", text)
    if text[-1:] in "l}rtg" and DIGIT.search(text):
        text = IN_TOTAL.sub(lambda m: "}" if m[0].endswith("}") and "{" not in m[0] else "", text)
    text = GROUPED_SIGN.sub(lambda m: f"{m[1]} " if m[1] else m[2], text) if "{" in text else text
    text = BRACE_COMMA.sub(_brace_comma, text) if "{,}" in text else text
    if "{" in text or " " in text or "h" in text:
        text = without_phrases(text)
    if comma_is_decimal and text.count(",") == 1:
        text = DECIMAL_COMMA.sub(_decimal_comma, text)
    return text


def _trimmed(text: str) -> str:
    if text.endswith("\\\\"):
        return text[:-2]
    if text.endswith(("..", "\\!")):
        return text
    return TRAILING.sub("", text).removesuffix("\\")  # what is left of a space, `\\ `, whose blank is gone


def _brace_comma(match: re.Match[str]) -> str:
    """Return a comma in braces before three digits, which groups thousands; elsewhere a decimal point."""
    rest = match.string[match.end() : match.end() + 4]
    groups = re.match(r"\d{3}(?!\d)", rest)
    zero = match.string[: match.start()].strip("-+ ") == "0"
    return "{,}" if groups is not None and not zero else "."


def _decimal_comma(match: re.Match[str]) -> str:
    """Return the decimal with a point; 1,234 groups thousands even where the comma is the decimal point."""
    thousands = len(match[2]) == 3 and len(match[1]) <= 3 and not match[1].startswith("0")
    return match[0] if thousands else f"{match[1]}.{match[2]}"


def _without_dollars(text: str) -> str:
    """Return the text without math delimiters; a dollar sign that is a currency is kept, escaped."""
    places = [m.start() for m in DOLLAR.finditer(text)]
    currency = re.search(r"\d(?:\s?(?:million|billion|thousand|[a-z]+))?$", text)
    if len(places) == 1 and currency and re.match(r"\s?\d|\s?\.\d", text[places[0] + 1 :]):
        return text[: places[0]] + "\\$" + text[places[0] + 1 :]
    if len(places) % 2 and re.match(r"\$?\d", text[places[0] + 1 :]) and places[0] == 0 and len(places) > 1:
        return "\\$" + DOLLAR.sub("", text)
    equations = NEXT_EQUATION.split(text)
    return DOLLAR.sub("", ",".join(equations) if all("=" in e for e in equations) else text)


def rewritten(text: str) -> str:
    """Return the cleaned text with one spelling for combinations, rows and derivations over several lines."""
    if "/_" in text:
        text = SLANTED.sub(r"\\frac{\1}{\2}", text)
    if "\\not" in text:
        text = NEGATED.sub(lambda m: "\\notin " if m[1] == "\\in" else "\\ne ", text)
    if "\\\\[" in text:
        text = ROW_SPACE.sub(r"\\\\", text)
    if "\\\\" in text:
        text = CONTINUED.sub(" ", text)
        text = LEFT_BRACE.sub(r"\\begin{cases}\2\\end{cases}", text)
    if "quad" in text:
        text = CASES.sub(lambda m: WIDE.sub(" & ", m[0]), text)
    if "=" in text:
        text = with_named_labels(text)
    if "C" in text or "P" in text:
        text = COMBINATION.sub(_combination, text)
    return text


def _combination(match: re.Match[str]) -> str:
    """Return _5C_2, C_5^2 or 5C2 as a binomial, and the same with P as a quotient of factorials."""
    groups = [g for g in match.groups() if g is not None]
    if groups[0] in {"C", "P"}:
        kind, above, below = groups
    else:
        above, kind, below = groups
    return f"\\binom{{{above}}}{{{below}}}" if kind == "C" else f"\\frac{{{above}!}}{{({above}-{below})!}}"


def base_number(text: str) -> tuple[str, int] | None:
    """Return (digits, base) of 101_2, (101)_{two}, 101 base 2, 0b101; None if the text is no such number."""
    prefixed = PREFIXED_BASE.fullmatch(text)
    if prefixed is not None:
        return _checked(prefixed[2], BASES[prefixed[1].lower()])
    if "_" not in text and not IN_BASE.search(text):
        return None
    bare = spelled_out.SPACING.sub(" ", spelled_out.STYLE.sub("", text)).replace("{", "").replace("}", "").strip()
    number = BASE.fullmatch(DIGIT_GROUPS.sub("", bare))
    if number is None:
        return None
    name = number[2] or number[3] or number[4]
    return _checked(number[1], int(name) if name.isdigit() else BASES.get(name, 0))


def _checked(digits: str, base: int) -> tuple[str, int] | None:
    """Return the digits without leading zeros, and the base; None if a digit does not exist in the base."""
    digits = digits.upper()
    if not 2 <= base <= 36 or any(int(c, 36) >= base for c in digits.lstrip("-")):
        return None
    sign = "-" if digits.startswith("-") else ""
    return sign + (digits.lstrip("-").lstrip("0") or "0"), base


def _ratio_in_words(text: str) -> Node | None:
    """Return "3 to 4" as a ratio; None for other texts."""
    ratio = WORD_RATIO.fullmatch(text.strip())
    if ratio is None:
        return None
    try:
        return Node("ratio", tuple(parse(term) for term in ratio.groups() if term is not None))
    except Unreadable:
        return None
