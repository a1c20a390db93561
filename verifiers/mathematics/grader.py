"""The grader: responses and golds in, verdicts out. Golds are read once, equal rows answered once."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from pydantic import Field

from verizero.pipeline.errors import DataError, GradingError
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.answer import MAX_TAIL, Answer, announced_answer, final_answer, last_box
from verizero.verifiers.answer.prose import letter_stated
from verizero.verifiers.base import VerifierParams
from verizero.verifiers.mathematics.decide.algebra import ALGEBRA, TimedOut
from verizero.verifiers.mathematics.decide.compare import match
from verizero.verifiers.mathematics.decide.equality import approximate
from verizero.verifiers.mathematics.decide.equation_chains import DENYING, last
from verizero.verifiers.mathematics.decide.evaluation import BUDGET, MAX_DECISION, OverBudget
from verizero.verifiers.mathematics.decide.formulas import letters_for_unit
from verizero.verifiers.mathematics.decide.quantities import explicitly_rounded
from verizero.verifiers.mathematics.read.choices import Choice, choice_of_answer, choice_of_gold, choices_in
from verizero.verifiers.mathematics.read.clock import same_time
from verizero.verifiers.mathematics.read.reading import APPROXIMATE, KINDS, Reading, clean
from verizero.verifiers.mathematics.read.syntax_tree import (
    COLLECTIONS,
    IMAGINARY,
    Node,
    has,
    in_one_font,
    is_constant,
    nodes,
)
from verizero.verifiers.mathematics.words.characters import is_certain
from verizero.verifiers.mathematics.words.spelled_out import SPACING
from verizero.verifiers.mathematics.words.vocabulary import words_of

GOLDS, ANSWERS = 16_384, 16_384
"""Entries of the two caches."""
SLOW_PATH_S = 0.5
"""Seconds of work that a question to a computer algebra system may take."""
MAX_ASKED = 300
"""Characters of a text that a computer algebra system is asked about."""
MAX_ASKED_POWERS, MAX_ASKED_EXPONENT, MAX_ASKED_POWER = 6, 20, 100_000
HEDGE_TOLERANCE = 0.01
"""Relative distance of the decimal of an exact answer from it: `\\boxed{\\sqrt2}` or 1.41."""
MANY_DIGITS = re.compile(r"\d{30}")
OPERATORS = re.compile(r"[-+*/^!]|\\(?:times|cdot|frac|sqrt|binom|sum|int)")
OUTSIDE_GRAMMAR = re.compile(r"[+*/^!=|_]|\\(?!text|mathrm|mbox|quad|operatorname)[A-Za-z]")
"""Signs of a formula, as opposed to words. Of a formula that no tree is made of every mark counts, and its case."""
BOLD = re.compile(r"\\(?:math)?(?:bf|bold|bm|pmb|symbf)")
WITH_VALUE = re.compile(r"[\d\\+*/^]")
ANNOUNCED = re.compile(r"^(?:(?:final )?answer(?: is|:| =)?|it is) ")
TEXT_LIST = re.compile(r"\s*(?:,|;|\band\b|&)\s*")
SIDE_BY_SIDE = re.compile(r"-?[\d./]+(?: -?[\d./]+)+")
"""Numbers in an order, as DeepMind's mathematics_dataset writes them."""
RATE = re.compile(
    r"(?<=[\d}])(?:(?:[\s~]|\\[,;: ])+|(?=[kc]m))(?:(?:[kc]?m|ft|mi)/(?:s(?:\^\{?2\}?)?|h)|(?:m?g|mol)/L|g/mol)$"
)
"""Units behind a number, such as m/s: elsewhere, as in 3m/s or 5/h, their letters are names."""
PARITY = re.compile(r"\b(?:odd|even|prime|primes|composite)\b")
SHOWN_AS_TIME = re.compile(r":0\d|[a-z]")
FILLING = words_of("n k m p x value values all every any for is are must be integer integers number numbers of")
"""Words that do not tell "all odd integers n" from "n odd"."""
NO_BRACES = str.maketrans("", "", "{}\\")
TRUTH = {"yes": True, "true": True, "no": False, "false": False}
RESERVED = DENYING | TRUTH.keys() | {"except", "but", "only"}  # they take back the yes or no before them


class MathParams(VerifierParams):
    """The points of the label policy (`docs/verifiers-math.md`) that a recipe decides."""

    decimal_comma: bool = Field(False, description="read 3,5 as 3.5 in every response, not only in other languages")
    max_answer_chars: int = Field(2_000, ge=16, le=20_000, description="a longer answer is wrong: too_long")
    slow_path: bool = Field(True, description="ask a computer algebra system, in its own process, what is undecided")


DEFAULT = MathParams()


class Gold:
    """A gold answer, read once: its reading and the type it decides."""

    __slots__ = ("choice", "choices", "reading", "rounded", "text")

    def __init__(self, text: str, comma: bool) -> None:
        self.text = text
        self.reading = Reading(clean(text, comma))
        self.rounded = False
        if SIDE_BY_SIDE.fullmatch(text) and (self.reading.tree is None or text.count(" ") == text.count(" -")):
            self.reading = Reading(f"({text.replace(' ', ', ')})")
        if self.reading.approximate:
            bare = Reading(clean(APPROXIMATE.sub("", self.reading.text)))
            # The sign of approximation comes first. An ellipsis behind 3.14... makes no rounded number of it.
            if bare.tree is not None and is_constant(bare.tree) and self.reading.text[:1] in "\\~a≈r":
                self.reading, self.rounded = bare, True
        self.choice = choice_of_gold(self.reading.text)
        several = choices_in(self.reading.text)
        self.choices = several if "," in text or ";" in text or "and" in text else None  # ACE may name a triangle


def grade(response: str, gold: Any, params: MathParams = DEFAULT, prompt: str = "", truncated: bool = False) -> Verdict:
    """Return the verdict on a response against a gold answer. Raises: DataError if the gold is empty."""
    start = time.perf_counter()
    reference = gold_text(gold)
    answer = final_answer(Attempt(response, reference, prompt, truncated))
    if answer.text is None:
        return Verdict("no_answer", reason=answer.reason, seconds=time.perf_counter() - start)
    text = answer.written
    if len(text) > params.max_answer_chars:
        return Verdict("graded", 0.0, f"too_long: {len(text)} characters", text[:80], time.perf_counter() - start)
    if prompt and _restates(text, prompt, reference, params.decimal_comma):
        equal, reason = False, "restatement"
    else:
        comma, other = answer.other_language or params.decimal_comma, answer.alternative
        try:
            equal, reason = _answered(text, reference, comma, params)
            if not equal and answer.reason == "boxed":
                equal, reason = _chosen_below(response, text, reference, params.decimal_comma) or (equal, reason)
            if equal and other is not None and _is_another(other, reference, comma, params):
                equal, reason = False, f"hedge: {other:.60}"
        except TimedOut:
            seconds = time.perf_counter() - start
            return Verdict("timeout", reason=f"slow_path: over {SLOW_PATH_S} s", extracted=text, seconds=seconds)
    return Verdict("graded", float(equal), reason, text, time.perf_counter() - start)


def score(rows: Iterable[tuple[str, Any]], params: MathParams = DEFAULT) -> list[Verdict]:
    """Return a verdict per (response, gold), in order, equal rows once; "verifier_error" where there is no gold."""
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
    """Return the gold answer as text: a number in digits, the last box or the text after #### of a whole solution.

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


def _restates(text: str, prompt: str, reference: str, comma: bool) -> bool:
    """True if the answer only copies an expression of the prompt instead of its value."""
    if not OPERATORS.search(text[1:]):
        return False
    copied = "".join(text.split()).strip("$.=?") in "".join(prompt.split())
    tree = _gold(reference, comma).reading.tree
    return copied and tree is not None and tree.op in {"num", "dec"}


@lru_cache(maxsize=GOLDS)
def _gold(text: str, comma: bool) -> Gold:
    return Gold(text, comma)


def _chosen_below(response: str, text: str, reference: str, comma: bool) -> tuple[bool, str] | None:
    r"""Return the verdict on a letter that is announced behind a box with a value: \boxed{45}. The answer is (E)."""
    gold = _gold(reference, comma).choice
    if gold is None or gold.shown or choice_of_answer(text) is not None:
        return None
    below = response[response.rfind("\\boxed") :].strip()
    announced = announced_answer(below) or Answer(letter_stated(below.rpartition("\n")[2]), "conclusion")
    letter = None if announced.text is None else choice_of_answer(announced.text)
    if letter is None or announced.alternative:
        return None
    return letter.letter == gold.letter, "equal" if letter.letter == gold.letter else f"wrong: {announced.text:.60}"


@lru_cache(maxsize=ANSWERS)
def _answered(text: str, reference: str, comma: bool, params: MathParams) -> tuple[bool, str]:
    """Return (equal, reason). What the own tree leaves open is asked of a computer algebra system."""
    gold = _gold(reference, params.decimal_comma)
    answer = Reading(clean(text, comma))
    if not answer.text:
        return False, "empty"
    try:
        equal = BUDGET.within(MAX_DECISION, equivalent, gold, answer)
    except OverBudget:
        return False, f"undecided: too much work: {answer.text:.60}"
    asked = params.slow_path and equal is not True and _worth_asking(gold.reading, answer, equal)
    if asked:
        equal = ALGEBRA.equal(gold.reading.text, answer.text, SLOW_PATH_S)
    if equal:
        return True, "equal_by_algebra" if asked else "equal"
    if equal is None:
        return False, f"undecided: {answer.text:.60}"
    return False, f"wrong: {answer.problem or answer.text:.60}"


def _is_another(alternative: str, reference: str, comma: bool, params: MathParams) -> bool:
    """True if the second candidate next to a right answer is neither another form of the answer nor its decimal."""
    if _answered(alternative, reference, comma, params)[0]:
        return False
    trees = _gold(reference, params.decimal_comma).reading.tree, Reading(clean(alternative, comma)).tree
    if any(t is None or (has(t, "rel") and "=" not in t.args) or IMAGINARY in nodes(t) for t in trees):
        return True
    gold, other = (last(t) for t in trees if t is not None)
    if not is_constant(gold) or not is_constant(other) or has(gold, "dec") or not has(other, "dec"):
        return True
    value, decimal = approximate(gold), approximate(other)
    return value is None or decimal is None or abs(value - decimal) > HEDGE_TOLERANCE * abs(value)


def _worth_asking(gold: Reading, answer: Reading, equal: bool | None) -> bool:
    """True if a computer algebra system may know better than `equal`.

    That is where the gold is left unevaluated, or nothing could be decided about small expressions.
    """
    if len(gold.text) > MAX_ASKED or len(answer.text) > MAX_ASKED or MANY_DIGITS.search(answer.text):
        return False
    if gold.tree is None or has(gold.tree, "ratio") or (answer.tree is not None and has(answer.tree, "undone")):
        return False
    if gold.tree.op == "undone":
        # Towers of powers are written to hang a computer algebra system.
        is_value = bool(WITH_VALUE.search(answer.text)) and answer.text.count("^") < MAX_ASKED_POWERS
        is_value = is_value and (answer.tree is None or not any(map(_is_huge, nodes(answer.tree))))
        return equal is not True and "\\text" not in gold.text and is_value
    trees = (gold.tree, answer.tree)
    return equal is None and all(t is not None and all(_is_small(n) for n in nodes(t)) for t in trees)


def _is_huge(node: Node) -> bool:
    """True if the node is a power of numbers with more digits than a computer algebra system works out in time."""
    if node.op != "pow" or not is_constant(node):
        return False
    exponent = approximate(node.args[1])
    return IMAGINARY not in nodes(node) and (exponent is None or abs(exponent) > MAX_ASKED_POWER)


def _is_small(node: Node) -> bool:
    """True if evaluating the node takes no long time by itself."""
    if node.op in {"fact", "binom", "perm", "undone"}:
        return False
    if node.op != "pow" or node.args[1].op == "sym":
        return True
    exponent = node.args[1]
    return exponent.op in {"num", "dec"} and abs(exponent.args[0]) <= MAX_ASKED_EXPONENT


def equivalent(gold: Gold, answer: Reading) -> bool | None:
    """True if the answer equals the gold; None if that could not be decided."""
    wanted = gold.reading
    if answer.text == wanted.text or SPACING.sub(" ", answer.text) == gold.text:
        return True
    if gold.choices is not None and choices_in(answer.text) == gold.choices:
        return True
    if gold.choice is not None:
        return _chosen(gold.choice, answer)
    if wanted.base is not None or answer.base is not None:
        return _same_base(wanted, answer)
    if wanted.chemical is not None:
        if wanted.chemical == answer.chemical:
            return True
        if is_certain(wanted.text):
            return False
    early = _as_words(wanted, answer)
    if early is not None:
        return early
    if wanted.tree is None or _is_words(wanted.tree):
        if wanted.tree is None and OUTSIDE_GRAMMAR.search(wanted.text):
            return wanted.marks is not None and wanted.marks == answer.marks
        return _same_text(wanted, answer)
    gold_tree = wanted.tree
    if is_constant(last(gold_tree)) and not has(gold_tree, "percent", "deg") and RATE.search(answer.text):
        answer = Reading(RATE.sub("", answer.text))
    tree = answer.tree
    if tree is None or has(tree, "word"):
        tree = answer.number_word or answer.counted or tree
    if is_constant(gold_tree) and (tree is None or (tree.op == "add" and not is_constant(tree))):
        choice = choice_of_answer(answer.text)
        is_value = tree is None or (choice and choice.shown[:1] == "-" and f" {choice.shown}" in answer.text)
        if choice is not None and is_value and choice.letter <= ("H" if tree is None else "E"):
            tree = Reading(clean(choice.shown)).tree  # (b) 0.3, or (b) -0.3, which is no sum; (n) 3 is n times 3
    if tree is None:
        return False
    if ("b" in wanted.text or "b" in answer.text) and (BOLD.search(wanted.text) or BOLD.search(answer.text)):
        gold_tree, tree = in_one_font(gold_tree, tree)
    # "3 and 1/2" is a mixed number or a list of two, and the gold's type tells which.
    if answer.mixed is not None and gold_tree.op not in COLLECTIONS and match(gold_tree, answer.mixed):
        return True
    if gold.rounded and is_constant(tree) and explicitly_rounded(gold_tree, tree):
        return True
    equal = match(gold_tree, tree)
    spelled = None if equal else letters_for_unit(gold_tree, tree)
    return equal if spelled is None else match(spelled, tree)


def _as_words(wanted: Reading, answer: Reading) -> bool | None:
    """Compare with a gold that its words make a non-number, a time or a date; None if it is none of these."""
    if wanted.nothing is not None:
        kind = answer.nothing
        tree = wanted.tree if kind is None and wanted.nothing in KINDS else None
        if tree is not None and tree.op != "word" and answer.tree is not None:
            return match(*in_one_font(tree, answer.tree))
        return kind == wanted.nothing
    if wanted.date is not None:
        return answer.date == wanted.date
    if wanted.time is not None:
        if answer.time is not None and same_time(wanted.time, answer.time):
            return True
        # 3:20 may also be a ratio, but not 3:05, 3:20 pm, or one that is not in lowest terms.
        if SHOWN_AS_TIME.search(wanted.plain) or wanted.tree is None or not _lowest_terms(wanted.tree):
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


def _chosen(gold: Choice, answer: Reading) -> bool | None:
    """Compare with a choice as gold: by letters, or by the text of the choice where the gold shows it."""
    choice = choice_of_answer(answer.text)
    # Lower-case letters from f on are rather names than choices.
    if choice is None or (len(answer.text) == 1 and answer.text.islower() and gold.letter > "E"):
        return equivalent(_gold(gold.shown, False), answer) if gold.shown else False
    if choice.letter != gold.letter:
        return False
    if choice.shown and gold.shown:
        return equivalent(_gold(gold.shown, False), Reading(clean(choice.shown)))
    return True


def _same_base(wanted: Reading, answer: Reading) -> bool | None:
    """Compare where a side is written in a base. Only base ten may be left out: the base was the task."""
    if wanted.base is not None and answer.base is not None:
        same_value = int(*wanted.base) == int(*answer.base)
        return wanted.base == answer.base or (same_value and wanted.base[1] == answer.base[1])
    digits, base = wanted.base or answer.base or ("", 0)
    if base != 10:
        return False
    other = answer.tree if wanted.base is not None else wanted.tree
    if other is None:
        return False
    number = Reading(digits).tree or other
    return match(number, other) if wanted.base is not None else match(other, number)


def _same_text(wanted: Reading, answer: Reading) -> bool | None:
    """Compare texts in lower case: words, yes and no, numbers in words, lists."""
    gold, text = wanted.plain, ANNOUNCED.sub("", answer.plain)
    if gold == text:
        return bool(gold) or None
    if gold in TRUTH:
        first, _, rest = text.partition(",")
        barred = RESERVED if TRUTH[gold] else RESERVED - {"not", "never", "neither"}
        return TRUTH.get(first.strip()) == TRUTH[gold] and barred.isdisjoint(re.findall(r"[a-z]+", rest))
    if wanted.number_word is not None and answer.tree is not None:
        return match(wanted.number_word, answer.tree)
    is_same_kind = PARITY.search(gold) and _bare_kind(gold) == _bare_kind(text)
    if is_same_kind or "".join(gold.split()) == "".join(text.split()):
        return True
    if wanted.text.startswith("\\{") and answer.text.startswith("\\{"):
        gold, text = (" ".join(t.translate(NO_BRACES).split()) for t in (gold, text))
    items, others = (sorted(i for i in TEXT_LIST.split(t) if i) for t in (gold, text))
    return len(items) > 1 and items == others


def _bare_kind(text: str) -> list[str]:
    return [w for w in text.replace("mathbb", "").split() if w not in FILLING]


__all__ = ["Gold", "MathParams", "equivalent", "gold_text", "grade", "score"]
