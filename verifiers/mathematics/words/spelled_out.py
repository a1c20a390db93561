"""Answers in words: plain text, numbers in words, and the ways to say that there is no solution."""

from __future__ import annotations

import re

from verizero.verifiers.mathematics.words.vocabulary import in_order

STYLE = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|sc|normal|up|md)?|math(?:rm|bf|it|sf|tt)|mbox|hbox|emph|operatorname|boldsymbol|bm"
    r"|underline|boxed"
    r"|displaystyle|left|right|big|Big|rm|bf|it|color\{\w+\}|textcolor\{\w+\})(?![A-Za-z])\*?"
)
SPACING = re.compile(r"\\[,;:! ]|\\q?quad(?![A-Za-z])|~|\s+")
OUTER = re.compile(r"^[\s\"'`*_.,;:!]+|[\s\"'`*_.,;:!]+$")
HYPHEN = re.compile(r"(?<=[^\W\d])-|-(?=[^\W\d])")
ARTICLE = re.compile(r"\b(?:[Tt]he|an?)\s+|^An?\s+")
"""An article; a capital A inside a text is a name."""
NOTHING = r"""
none         | none | there are none | empty | empty set | emptyset | varnothing | null set | ∅ | {} | \{\}
none         | no answer exists | does not have solution
dne          | dne | d.n.e | d.n.e. | does not exist | doesn't exist | do not exist | it does not exist | not exist
dne          | limit does not exist | limit dne
undefined    | undefined | not defined | is undefined | it is undefined
infinity     | infinity | +infinity | infty | +infty | + infty | \infty | +\infty | oo | +oo | infinite | unbounded
infinity     | positive infinity | plus infinity
-infinity    | -infinity | -infty | - infty | -\infty | -oo | negative infinity | minus infinity
many         | infinitely many | there are infinitely many | infinitely many solutions | infinitely many values
many         | there are infinitely many solutions | infinite many solutions | infinite solutions | infinite number
many         | infinite number of solutions
diverges     | diverges | divergent | does not converge | it diverges | series diverges
positives    | all positive numbers | all positive real numbers | positive real numbers
positives    | all positive reals | positive reals
negatives    | all negative numbers | all negative real numbers | negative real numbers | all negative reals
nonnegatives | all nonnegative real numbers | all non negative real numbers | nonnegative real numbers
nonnegatives | all nonnegative reals
integers     | integers | all integers | any integer | every integer | all integer values
integers     | set of integers | set of all integers
reals        | real numbers | all real numbers | any real number | every real number | all reals | all real values
reals        | set of real numbers | set of all real numbers | x is any real number | all real values of x
reals        | all real numbers x | all real x | all x | mathbb{r}
none         | 无解 | 無解 | 无实数解 | 无实根 | 没有实数解 | 空集
dne          | 不存在
infinity     | 无穷大 | 正无穷
-infinity    | 负无穷
many         | 无数 | 无数个 | 无穷多 | 无穷多个 | 无数解 | 无穷多解
reals        | 全体实数 | 任意实数 | 一切实数 | 实数集
"""
"""A kind of non-number, and texts that name it. Denials in the form of NO_SUCH are not listed."""
ROWS = ([cell.strip() for cell in row.split("|")] for row in NOTHING.strip().splitlines())
GROUP = {text: kind for kind, *texts in ROWS for text in texts}
NO_SUCH = re.compile(
    r"(?:there (?:is|are|exists?) |(?:(?:this|it|system|equations?|inequality|problem|of|given|we) )*(?:has|have) )?"
    r"no (?:such |real |integer |rational |positive |possible |valid |nontrivial )*"
    r"(?:solutions?|roots?|values?|numbers?|integers?|functions?|pairs?|triples?|primes?|polynomials?|[a-z])"
    r"(?: (?:exists?|of [a-z]|to the equation|in the reals|over the reals))?"
)
SMALL = in_order("""
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen
""")
TENS = in_order("twenty thirty forty fifty sixty seventy eighty ninety")
NUMBERS = {w: i for i, w in enumerate(SMALL)} | {w: 10 * i for i, w in enumerate(TENS, start=2)}
LARGE = {"thousand": 1_000, "million": 10**6, "billion": 10**9}
PARTS = dict(zip(in_order("third quarter fourth fifth sixth eighth tenth"), (3, 4, 4, 5, 6, 8, 10), strict=True))
PARTS |= {f"{part}s": size for part, size in PARTS.items()} | {"half": 2, "halves": 2}


def plain(text: str) -> str:
    """Return `text` in lower case without styles, braces, articles, outer punctuation and doubled space."""
    bare = STYLE.sub(" ", text) if "\\" in text else text
    bare = SPACING.sub(" ", bare)
    if "\\{\\" in bare:
        return bare  # a set of formulas, in which braces and case mean something
    if "\\{" not in bare:
        bare = bare.replace("{", "").replace("}", "")
    bare = OUTER.sub("", bare.replace("\\", "").replace("$", ""))
    if " " in bare:
        bare = ARTICLE.sub("", bare.lower() if bare.isupper() else bare)
    bare = bare.lower()
    return " ".join(HYPHEN.sub(" ", bare).split()) if bare[:1].isalpha() else " ".join(bare.split())


def nothing(bare: str) -> str | None:
    """Return the kind of non-number that a plain text names, such as dne or infinity; None if it names none."""
    return GROUP.get(bare) or (
        "none" if (bare.startswith("no ") or " no " in bare) and NO_SUCH.fullmatch(bare) else None
    )


def number_in_words(bare: str) -> tuple[int, int] | None:
    """Return (numerator, denominator) of a number written in English words, None if it is no number."""
    words = bare.replace("-", " ").split()
    if not words or len(words) > 14:
        return None
    sign = 1
    if words[0] in {"minus", "negative"}:
        sign, words = -1, words[1:]
    below = 1
    if len(words) > 1 and words[-1] in PARTS:
        below, words = PARTS[words[-1]], words[:-1]
    # "Two hundred thousand and five": a section of hundreds, tens and ones is built up until thousand or million
    # multiplies it. A word may only follow one that leaves room for it: twenty-one, but not one-twenty.
    total = section = 0
    seen = False
    last = None
    for word in words:
        if word in NUMBERS:
            if last is not None and (last < 20 or NUMBERS[word] >= 10):
                return None
            section, seen, last = section + NUMBERS[word], True, NUMBERS[word]
        elif word == "hundred" and seen:
            section, last = section * 100, None
        elif word in LARGE and seen:
            total, section, last = total + section * LARGE[word], 0, None
        elif word != "and" or not seen:
            return None
    return (sign * (total + section), below) if seen else None
