"""Phrases around an answer that do not change it, such as its owner or "for all x"; and exceptions to a set."""

from __future__ import annotations

import re

from verizero.verifiers.mathematics.words.spelled_out import nothing
from verizero.verifiers.mathematics.words.vocabulary import words_of

BRACES = r"(?:\\(?:text|mathrm|textrm|mbox)\s?\{)?"
KIND = r"(?:positive |negative |non-?negative |nonzero |real |rational |natural |whole |complex |prime |odd |even )*"
NOUNS = r"(?:integers?|numbers?|reals?|primes?|values? of|constants?|values)"
NAME = r"\\?[A-Za-z]+(?:_\{?\w{1,3}\}?)?"
NUMBER_SET = (
    r"(?:\s*(?:\\in|in|∈)\s*\\?(?:mathbb\s?\{?\s?[RZNQC]\s?\}?|[RZNQC]\b)(?:\s?_?\^?\{?[+*><0=ge\\ ]{1,4}\}?)?)"
)
NAMES = rf"\$?{NAME}(?:\s*(?:,|and)\s*{NAME}){{0,3}}\$?"
LEAD = rf"\s*[,;(]?\s*(?:\\q?quad\s*|\\[,; ]\s*|~)*{BRACES}\s*,?\s*"
TAIL = r"\s*\}?\s*[).]?\s*$"
HOLDS_FOR = re.compile(
    rf"{LEAD}(?:\bfor\s+(?:real|integers?|arbitrary|constants?)\s+{KIND}(?:{NOUNS}\s*)?\}}?"
    rf"|(?:\bfor\s+|\bwhere\s+|\bwith\s+)?\b(?:all|any|every|each|some)\s+{KIND}(?:{NOUNS}\s*)?\}}?|\\forall\s*)"
    rf"\s*(?:{NAMES}{NUMBER_SET}?)?{TAIL}"
)
CONSTANT_IS = re.compile(
    rf"{LEAD}\b(?:where|with|for)\s*\}}?\s*{NAMES}\s*{BRACES}\s*(?:is|are|being)?\s*(?:an?\s|any\s|some\s)?\s*"
    rf"(?:arbitrary |fixed )*{KIND}(?:constants?|parameters?|numbers?|integers?){TAIL}"
)
HOLDS_IN_SET = re.compile(rf"\s*,(?:\s|~|\\[,; ]|\\q?quad)*{NAMES}(?=\s*(?:\\in|∈)){NUMBER_SET}{TAIL}")
HOLDS_IN = re.compile(rf"{LEAD}\b(?:where|with|for)\s*\}}?\s*{NAMES}{NUMBER_SET}{TAIL}")
ON_CONDITION = re.compile(
    rf"\s*,?\s*(?:\\text\s?\{{\s*,?\s*(?:for|where|with|when)\s*\}}|\b(?:for|where|with|when)\b)\s*"
    rf"(?=\$?{NAME}\s*(?:[<>≤≥]|\\[gl](?:eq?|t)?(?![A-Za-z])|\\[gl]eqslant))"
)
EVERY = re.compile(
    rf"\s*{BRACES}\s*(?:for )?(?:all|any|every)\s+{KIND}(?:{NOUNS}\s*)?\}}?\s*(?=\$?\\?{NAME}\s*(?:[<>=]|\\[gln]))"
)
EXCEPT = re.compile(
    rf"{BRACES}\s*(?:[Aa]ll |any |every )?(?:the )?(?:real numbers?|reals|real(?=[ }}]+\$?[a-z]\b)|\\mathbb\{{R\}})"
    rf"(?:[ }}]+\$?{NAME}\$?)?\s*(?:\\text\s?\{{)?\s*,?\s*"
    r"(?:except|but|other than|excluding)(?: for)?(?: when)?\s*\}?\s*(?:[a-z]\s*=\s*)?(.+?)\}?"
)
HAS = re.compile(
    r"(?:\\text\{)?\s*((?:[A-Za-z][A-Za-z']*\s+){1,4})(?:has|have|had|needs?|gets?|got|earns?|earned|pays?|paid|costs?"
    r"|sold|weighs?|takes|took|makes|made|ate|read|ran|walked|spent|saved"
    r"|scored|received)\s+(?:a total of\s+)?(?=\}?\s*[\d\\$])"
)
DENYING = words_of("""
    not no never nobody none neither either or if unless maybe perhaps cannot hardly nearly almost about
    wouldn't doesn't didn't
""")
SPACE = r"(?:\s|~|\\[,;: ])*"
OHM = re.compile(
    rf"(?:(?:\\(?:text|mathrm)\s?\{{{SPACE}([kMGm])\s*\}}|(?<=\d){SPACE}([kMGm])){SPACE}|(?<=\d){SPACE})\\Omega\s*(?![A-Za-z^_])"
)
MICRO = re.compile(
    rf"(?<=[\d}}]){SPACE}\\mu{SPACE}(?:\\(?:text|mathrm|rm)\s?\{{\s*([A-Za-z]+)|([msgFCLNAVWJHT])(?![A-Za-z]))"
)
HOURS_AND_MINUTES = re.compile(r"(?<![\w.])(\d{1,4})\s?h\s?(\d{1,2})\s?(?:min|m|mins|minutes)(?![A-Za-z^])")
SIUNITX = re.compile(r"\\(ang|num|si|unit|SI|qty)\s?\{([^{}]*)\}(?:\s?\{([^{}]*)\})?")
SI_UNIT = re.compile(r"\\([a-z]+)")
PRIMES = re.compile(r"\^\s?\{?\s?(?:\\prime\s?)+\}?")
HYPHENED = re.compile(r"(?<=[a-z]{3})-(?=[a-z]{3,}[^{]*\})")
LETTER_UNITS = frozenset("mgsLNJWVAKh")
LETTER_UNIT = re.compile(r"^([-+]?[\d.,]+)(?:\s|~|\\[,; ])+([mgsLNJWVAKh])$")
SMALL_E = re.compile(r"(?<=\d)\s?\\(?:mathrm|text|textrm|rm)\s?\{\s?[eE]\s?\}\s?\{?([+-]?\d{1,9})\}?")
GENFRAC = re.compile(r"\\genfrac\s*\{\}\s*\{\}\s*(?:\{0?(?:pt)?\})?\s*\{[0-3]?\}(?=\s*\{)")


def without_phrases(text: str) -> str:
    """Return `text` without the words around the answer that do not change its value; unchanged if there are none.

    "f(x) = 2x for all x" -> "f(x) = 2x"; "all n >= 3" -> "n >= 3"; "Ann has 40 pens" -> "40 pens";
    "all real numbers except 0" -> the reals without {0}.
    """
    # The substring tests before each pattern keep the time down: most answers have none of these phrases.
    if "\\" in text and (text.startswith("\\") or "{" in text) and SIUNITX.search(text):
        text = _from_siunitx(text)
    if "prime" in text:
        text = PRIMES.sub(lambda m: "'" * m[0].count("prime"), text)
    if "-" in text and "\\text" in text:
        text = HYPHENED.sub(" ", text)
    text = LETTER_UNIT.sub(r"\1\\text{ \2}", text) if text[-1:] in LETTER_UNITS else text
    if "h" in text:
        text = HOURS_AND_MINUTES.sub(r"\1 hours \2 minutes", text)
    if "genfrac" in text:
        text = GENFRAC.sub(r"\\frac", text)
    if "\\Omega" in text:
        text = OHM.sub(lambda m: f"\\text{{ {m[1] or m[2] or ''}Ω}}", text)
    if "\\mu" in text:
        text = MICRO.sub(lambda m: f"\\text{{ μ{m[1]}" if m[1] else f"\\text{{ μ{m[2]}}}", text)
    if "{e" in text or "{E" in text:
        text = SMALL_E.sub(r"e\1", text)
    opening = text[:60].lower()
    if "all" in opening or "every" in opening or "any" in opening or "real" in opening:
        text = _reals_except(text)
        text = EVERY.sub("", text, count=1) if EVERY.match(text) else text
    if any(word in text for word in ("all", "any", "every", "each", "where", "with", "for", "some", "when")):
        for ending in (CONSTANT_IS, HOLDS_IN, HOLDS_FOR):
            # Only near the end, because these patterns take long on long texts.
            clause = ending.search(text, max(0, len(text) - 120))
            if clause is not None and clause.start() > 0 and nothing(text) is None:
                return text[: clause.start()].rstrip(" ,;")
        text = ON_CONDITION.sub(", ", text, count=1) if "=" in text or "(" in text else text
    clause = HOLDS_IN_SET.search(text) if "\\in" in text and "," in text else None
    if clause is not None and "=" in text[: clause.start()]:
        return text[: clause.start()]
    return _without_owner(text)


def _from_siunitx(text: str) -> str:
    r"""Return \ang{30}, \num{1e3}, \SI{5}{\metre} and \qty{5}{m/s} as plain numbers with units."""

    def plain(match: re.Match[str]) -> str:
        name, first, second = match.groups()
        if name == "ang":
            return rf"{first}^\circ "
        if name == "num":
            return first + (f"{{{second}}}" if second is not None else "")
        unit = SI_UNIT.sub(r" \1", second if name in {"SI", "qty"} else first) if (second or first) else ""
        return f"{first}\\text{{ {unit}}}" if name in {"SI", "qty"} and second is not None else f"\\text{{ {unit}}}"

    return SIUNITX.sub(plain, text)


def _reals_except(text: str) -> str:
    """Return "all real numbers except 0 and 1" as the reals without {0, 1}; other texts unchanged."""
    exception = EXCEPT.fullmatch(text)
    if exception is None or not re.search(r"\d|\\", exception[1]):
        return text
    points = re.sub(r"\\text\{\s*(?:and|or)?\s*\}|\b(?:and|or)\b", ",", exception[1].replace("$", ""))
    points = re.sub(r"(?<![A-Za-z])[a-z]\s*=\s*", "", points)
    points = points[2:-2] if points.startswith("\\{") and points.endswith("\\}") else points
    return rf"\mathbb{{R}} \setminus \{{ {points} \}}"


def _without_owner(text: str) -> str:
    """Return "40 stickers" of "Maria has 40 stickers"; other texts unchanged, also "nobody has 40 stickers"."""
    owner = HAS.match(text)
    if owner is None or DENYING.intersection(owner[1].lower().split()):
        return text
    inside, rest = text[: owner.end()].count("{"), text[owner.end() :]
    if inside and rest.startswith("}"):
        return rest[1:]
    return f"\\text{{{rest}" if inside and not rest.startswith("\\") else rest
