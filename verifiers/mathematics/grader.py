"""Responses and golds in, verdicts out. Golds are read once, equal rows answered once; both caches are bounded."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from pipeline.errors import DataError, GradingError
from pipeline.types import Attempt, Verdict
from verifiers.answer import MAX_TAIL, final_answer, last_box
from verifiers.mathematics.chains import last
from verifiers.mathematics.choices import Choice, choice_gold, choice_said
from verifiers.mathematics.clock import same_time
from verifiers.mathematics.compare import match
from verifiers.mathematics.equality import approximate
from verifiers.mathematics.policy import DEFAULT, MathParams
from verifiers.mathematics.quantities import explicitly_rounded
from verifiers.mathematics.reading import APPROXIMATE, Reading, clean
from verifiers.mathematics.regions import COLLECTIONS
from verifiers.mathematics.shapes import letters_for_unit
from verifiers.mathematics.slow import ALGEBRA, TimedOut
from verifiers.mathematics.tree import IMAGINARY, Node, has, is_constant, nodes
from verifiers.mathematics.words import STYLE

GOLDS, ANSWERS = 16_384, 16_384
MAX_ASKED = 300
HEDGE_TOLERANCE = 0.01
"""How far the decimal of an exact answer may be from it: `\\boxed{\\sqrt2}` or 1.41."""
MANY_DIGITS = re.compile(r"\d{30}")
OPERATORS = re.compile(r"[-+*/^!]|\\(?:times|cdot|frac|sqrt|binom|sum|int)")
MATHEMATICAL = re.compile(r"[-+*/^!=]|\\(?!text)[A-Za-z]")
WITH_VALUE = re.compile(r"[\d\\+*/^]")
ANNOUNCED = re.compile(r"^(?:(?:final )?answer(?: is|:| =)?|it is) ")
TEXT_LIST = re.compile(r"\s*(?:,|;|\band\b|&)\s*")
PARITY = re.compile(r"\b(?:odd|even|prime|primes|composite)\b")
FILLING = frozenset(
    [
        "n",
        "k",
        "m",
        "p",
        "x",
        "values",
        "all",
        "every",
        "any",
        "for",
        "is",
        "are",
        "must",
        "be",
        "integer",
        "integers",
        "number",
        "numbers",
        "value",
        "of",
        "values",
        "n",
        "k",
        "m",
        "p",
        "x",
    ]
)
NO_BRACES = str.maketrans("", "", "{}\\")
YES_NO = {"yes", "no"}


class Gold:
    """A gold answer, read once: its reading and the type it decides."""

    __slots__ = ("choice", "reading", "rounded", "text")

    def __init__(self, text: str, params: MathParams) -> None:
        self.text = text
        self.reading = Reading(clean(text, params.decimal_comma))
        self.rounded = False
        if self.reading.approximate and params.rounded_gold:
            bare = Reading(clean(APPROXIMATE.sub("", self.reading.text)))
            if bare.tree is not None and is_constant(bare.tree) and self.reading.text[:1] in "\\~a≈r":
                self.reading, self.rounded = bare, True
        self.choice = choice_gold(self.reading.text)


def grade(response: str, gold: Any, params: MathParams = DEFAULT, prompt: str = "", truncated: bool = False) -> Verdict:
    """The verdict on one response against one gold answer.

    Raises: DataError if the gold is empty.
    """
    start = time.perf_counter()
    reference = gold_text(gold)
    answer = final_answer(Attempt(response, gold, prompt, truncated), params.concluding_sentence)
    if answer.text is None:
        return Verdict("no_answer", reason=answer.reason, seconds=time.perf_counter() - start)
    text = answer.written if params.join_boxes or not answer.boxes else answer.boxes[-1]
    if len(text) > params.max_answer_chars:
        return Verdict("graded", 0.0, f"too_long: {len(text)} characters", text[:80], time.perf_counter() - start)
    if prompt and _restates(text, prompt, reference, params):
        equal, reason = False, "restatement"
    else:
        comma, other = answer.other_language or params.decimal_comma, answer.alternative
        try:
            equal, reason = _answered(text, reference, comma, params)
            if equal and other is not None and _is_another(other, reference, comma, params):
                equal, reason = False, f"hedge: {other:.60}"
        except TimedOut:
            seconds = time.perf_counter() - start
            return Verdict("timeout", reason=f"slow_path: over {params.slow_path_s} s", extracted=text, seconds=seconds)
    return Verdict("graded", float(equal), reason, text, time.perf_counter() - start)


def score(rows: Iterable[tuple[str, Any]], params: MathParams = DEFAULT) -> list[Verdict]:
    """One verdict per (response, gold), in order; equal rows are graded once, no gold is "verifier_error"."""
    known: dict[tuple[str, str], Verdict] = {}
    verdicts = []
    for response, gold in rows:
        key = (response, str(gold))
        if key not in known:
            try:
                known[key] = grade(response, gold, params)
            except (DataError, GradingError) as exc:
                known[key] = Verdict("verifier_error", reason=str(exc)[:300])
        verdicts.append(known[key])
    return verdicts


def gold_text(gold: Any) -> str:
    """The gold answer as text: a number in digits, the last box or the text after #### of a whole solution.

    Raises: DataError if there is none.
    """
    if gold is None or isinstance(gold, bool) or not str(gold).strip():
        raise DataError(f"reference must be the gold answer, got {gold!r}; give every row of verifier math a reference")
    text = str(gold).strip()
    if "####" in text:
        text = text.rsplit("####", 1)[1].strip() or text
    if "\\boxed" in text or "\\fbox" in text:
        inside = last_box(text[-MAX_TAIL:])
        if inside.text is not None:
            text = inside.text
    return text


def _restates(text: str, prompt: str, reference: str, params: MathParams) -> bool:
    """Whether the answer only copies an expression of the prompt instead of its value."""
    if not OPERATORS.search(text[1:]):
        return False
    copied = "".join(text.split()).strip("$.=?") in "".join(prompt.split())
    tree = _gold(reference, params).reading.tree
    return copied and tree is not None and tree.op in {"num", "dec"}


@lru_cache(maxsize=GOLDS)
def _gold(text: str, params: MathParams) -> Gold:
    return Gold(text, params)


@lru_cache(maxsize=ANSWERS)
def _answered(text: str, reference: str, comma: bool, params: MathParams) -> tuple[bool, str]:
    gold = _gold(reference, params)
    said = Reading(clean(text, comma))
    if not said.text:
        return False, "empty"
    equal = equivalent(gold, said, params)
    asked = params.slow_path and equal is not True and _worth_asking(gold.reading, said, equal)
    if asked:
        equal = ALGEBRA.equal(gold.reading.text, said.text, params.slow_path_s)
    if equal:
        return True, "equal_by_algebra" if asked else "equal"
    if equal is None:
        return False, f"undecided: {said.text:.60}"
    return False, f"wrong: {said.problem or said.text:.60}"


def _is_another(alternative: str, reference: str, comma: bool, params: MathParams) -> bool:
    """Whether what a hedge offers beside the right answer is no other form of it, nor its decimal."""
    if _answered(alternative, reference, comma, params)[0]:
        return False
    trees = _gold(reference, params).reading.tree, Reading(clean(alternative, comma)).tree
    if any(t is None or (has(t, "rel") and "=" not in t.args) or IMAGINARY in nodes(t) for t in trees):
        return True
    gold, other = (last(t) for t in trees if t is not None)
    if not is_constant(gold) or not is_constant(other) or has(gold, "dec") or not has(other, "dec"):
        return True
    one, two = approximate(gold), approximate(other)
    return one is None or two is None or abs(one - two) > HEDGE_TOLERANCE * abs(one)


def _worth_asking(gold: Reading, said: Reading, equal: bool | None) -> bool:
    """Whether a computer algebra system may know better: the gold is mathematics that the grammar does not know, or
    nothing could be decided about two small expressions."""
    if len(gold.text) > MAX_ASKED or len(said.text) > MAX_ASKED or MANY_DIGITS.search(said.text):
        return False
    if gold.tree is None or has(gold.tree, "undone"):
        return (
            equal is not True
            and "\\text" not in gold.text
            and bool(MATHEMATICAL.search(gold.text) and WITH_VALUE.search(said.text))
            and said.text.count("^") < 6
        )
    return (
        equal is None and said.tree is not None and all(_is_small(n) for t in (gold.tree, said.tree) for n in nodes(t))
    )


def _is_small(node: Node) -> bool:
    if node.op in {"fact", "binom", "perm", "undone"}:
        return False
    if node.op != "pow":
        return True
    exponent = node.args[1]
    return exponent.op in {"num", "dec", "sym"} and (exponent.op == "sym" or abs(exponent.args[0]) <= 20)


def equivalent(gold: Gold, said: Reading, params: MathParams) -> bool | None:
    """Whether the answer read equals the gold; None if that could not be decided."""
    wanted = gold.reading
    if said.text == wanted.text:
        return True
    if gold.choice is not None:
        return _chosen(gold.choice, said, params)
    if wanted.base is not None or said.base is not None:
        return _same_base(wanted, said, params)
    early = _as_words(wanted, said)
    if early is not None:
        return early
    if wanted.tree is None or _is_words(wanted.tree):
        equal = _text(wanted, said, params)
        return equal if params.text_ignores_case or not equal else _letters(wanted.text) == _letters(said.text)
    tree = said.tree
    if tree is None or has(tree, "word"):
        tree = said.number_word or tree
    if tree is None:
        return False
    if said.mixed is not None and wanted.tree.op not in COLLECTIONS and match(wanted.tree, said.mixed, params):
        return True
    if gold.rounded and is_constant(tree) and explicitly_rounded(wanted.tree, tree):
        return True
    found = match(wanted.tree, tree, params)
    spelled = None if found else letters_for_unit(wanted.tree, tree)
    return found if spelled is None else match(spelled, tree, params)


def _as_words(wanted: Reading, said: Reading) -> bool | None:
    """The verdict where the gold is no number by its words: nothing, a time, a date; None if it is none of these."""
    if wanted.nothing is not None:
        kind = said.nothing
        if kind is None and said.tree is not None and wanted.tree is not None and wanted.tree.op != "word":
            return match(wanted.tree, said.tree, DEFAULT)
        return kind == wanted.nothing
    if wanted.date is not None:
        return said.date == wanted.date
    if wanted.time is not None:
        if said.time is not None and same_time(wanted.time, said.time):
            return True
        if re.search(r":0\d|[a-z]", wanted.plain) or wanted.tree is None or not _lowest_terms(wanted.tree):
            return False
    return None


def _lowest_terms(tree: Node) -> bool:
    if tree.op != "ratio":
        return False
    values = [a.args[0] for a in tree.args if a.op == "num" and isinstance(a.args[0], int)]
    return len(values) == len(tree.args) and math.gcd(*values) == 1


def _is_words(tree: Node) -> bool:
    return tree.op == "word" or (
        has(tree, "word") and not has(tree, "num", "dec", "rel", "const", "money", "percent", "deg")
    )


def _chosen(gold: Choice, said: Reading, params: MathParams) -> bool | None:
    choice = choice_said(said.text)
    if choice is None or (len(said.text) == 1 and said.text.islower() and gold.letter > "E"):
        if not gold.shown or not params.choice_text:
            return False
        return equivalent(_gold(gold.shown, params), said, params)
    if choice.letter != gold.letter:
        return False
    if choice.shown and gold.shown:
        return equivalent(_gold(gold.shown, params), Reading(clean(choice.shown)), params)
    return True


def _same_base(wanted: Reading, said: Reading, params: MathParams) -> bool | None:
    one, two = wanted.base, said.base
    if one is not None and two is not None:
        return one == two or (int(one[0], one[1]) == int(two[0], two[1]) and one[1] == two[1])
    based, other = (one, said) if one is not None else (two, wanted)
    if based is None or based[1] != 10 or other.tree is None:
        return False
    return (
        match(other.tree, Reading(based[0]).tree or other.tree, params)
        if one is None
        else match(Reading(based[0]).tree or other.tree, other.tree, params)
    )


def _text(wanted: Reading, said: Reading, params: MathParams) -> bool | None:
    one, two = wanted.plain, ANNOUNCED.sub("", said.plain)
    if one == two:
        return bool(one) or None
    if one in YES_NO:
        first, _, rest = two.partition(",")
        return first.strip() == one and not YES_NO.intersection(re.findall(r"[a-z]+", rest))
    if wanted.number_word is not None and said.tree is not None:
        return match(wanted.number_word, said.tree, params)
    if "".join(one.split()) == "".join(two.split()) or (PARITY.search(one) and _bare_kind(one) == _bare_kind(two)):
        return True
    if wanted.text.startswith("\\{") and said.text.startswith("\\{"):
        one, two = (" ".join(t.translate(NO_BRACES).split()) for t in (one, two))
    items, given = ([i for i in TEXT_LIST.split(t) if i] for t in (one, two))
    return len(items) > 1 and sorted(items) == sorted(given)


def _letters(text: str) -> str:
    return re.sub(r"[^A-Za-z]", "", STYLE.sub("", text))


def _bare_kind(text: str) -> list[str]:
    """The words that tell "all odd integers n" and "n odd" from others."""
    return [w for w in text.replace("mathbb", "").split() if w not in FILLING]


__all__ = ["Gold", "equivalent", "gold_text", "grade", "score"]
