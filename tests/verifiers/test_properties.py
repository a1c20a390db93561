"""Verifiers against slow, obvious doubles on generated cases."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections import Counter
from fractions import Fraction
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verizero.pipeline.types import Attempt
from verizero.verifiers import base
from verizero.verifiers._natural_language import KNOWN, language_of
from verizero.verifiers.knights_knaves import holds, solutions
from verizero.verifiers.numeric import number

load = lru_cache(base.load)


def score(name: str, reference: Any, response: str, **params: Any) -> float:
    said = load(name).bind(params).score([Attempt(response, reference)])[0]
    assert not said.is_infrastructure, said
    return said.score


@given(st.fractions(), st.integers(-20, 20))
def test_numbers_are_read_exactly(value: Fraction, exponent: int) -> None:
    assert number(f"{value.numerator}/{value.denominator}") == value
    assert number(f"{value.numerator}e{exponent}") == value.numerator * Fraction(10) ** exponent
    assert number(f"{value.numerator:,}") == value.numerator
    sign = "-" if value < 0 else ""
    assert number(rf"{sign}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}") == value


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**6), max_value=10**6))
def test_decimals_are_not_floats(value: Any) -> None:
    assert number(f"{value:f}") == Fraction(value)


def _expressions(numbers: tuple[int, ...]) -> list[str]:
    """All expressions over all of `numbers`, in this order of use, by every way to bracket them."""
    if len(numbers) == 1:
        return [str(numbers[0])]
    made = []
    for i in range(1, len(numbers)):
        for left, right in itertools.product(_expressions(numbers[:i]), _expressions(numbers[i:])):
            made += [f"({left}{op}{right})" for op in "+-*/"]
    return made


def test_countdown_agrees_with_python_on_every_expression() -> None:
    """Python evaluates the expressions that we made, over Fractions; the verifier parses them."""
    rng = random.Random(5)
    for _ in range(40):
        numbers = tuple(rng.randint(1, 12) for _ in range(rng.randint(1, 4)))
        for text in rng.sample(_expressions(numbers), k=min(6, len(_expressions(numbers)))):
            plain = re.sub(r"\d+", lambda m: f"Fraction({m[0]})", text)
            try:
                value = eval(plain, {"Fraction": Fraction})
            except ZeroDivisionError:
                value = None
            target = rng.choice([value, 7]) if value is not None and value.denominator == 1 else 7
            game = {"numbers": list(numbers), "target": int(target)}
            assert score("countdown", game, f"<answer>{text}</answer>") == float(value == target), text
            extra = {"numbers": list(numbers[:-1]) or [numbers[0] + 1], "target": int(target)}
            assert score("countdown", extra, f"<answer>{text}</answer>") == 0.0


def _solved_grid(box: int, rng: random.Random) -> list[list[int]]:
    size = box * box
    rows = [r for band in rng.sample(range(box), box) for r in rng.sample(range(band * box, band * box + box), box)]
    columns = [c for band in rng.sample(range(box), box) for c in rng.sample(range(band * box, band * box + box), box)]
    digits = rng.sample(range(1, size + 1), size)
    return [[digits[(box * (r % box) + r // box + c) % size] for c in columns] for r in rows]


@pytest.mark.parametrize("box", [2, 3, 4])
def test_sudoku_accepts_exactly_the_grids_that_a_slow_check_accepts(box: int) -> None:
    rng, size = random.Random(box), box * box
    for _ in range(20):
        grid = _solved_grid(box, rng)
        puzzle = [[c if rng.random() < 0.4 else 0 for c in row] for row in grid]
        text = "\n".join(" ".join(map(str, row)) for row in grid)
        assert score("sudoku", {"puzzle": puzzle}, text) == 1.0
        r, c, d = rng.randrange(size), rng.randrange(size), rng.randrange(size)
        grid[r][c], grid[r][d] = grid[r][d], grid[r][c]
        lines = grid + [list(x) for x in zip(*grid, strict=True)]
        lines += [
            [grid[a + i][b + j] for i in range(box) for j in range(box)]
            for a in range(0, size, box)
            for b in range(0, size, box)
        ]
        right = all(sorted(line) == list(range(1, size + 1)) for line in lines) and all(
            p in (0, g) for ps, gs in zip(puzzle, grid, strict=True) for p, g in zip(ps, gs, strict=True)
        )
        text = "\n".join(" ".join(map(str, row)) for row in grid)
        assert score("sudoku", {"puzzle": puzzle}, text) == float(right)


FORMULAS = st.recursive(
    st.tuples(st.sampled_from(["knight", "lying"]), st.integers(0, 2)).map(list),
    lambda f: st.one_of(
        f.map(lambda a: ["not", a]), st.tuples(st.sampled_from(["and", "or", "->", "<=>"]), f, f).map(list)
    ),
    max_leaves=5,
)


@pytest.mark.integration
@settings(max_examples=60)
@given(st.lists(FORMULAS, min_size=3, max_size=3))
def test_knights_and_knaves_are_judged_by_truth_tables(statements: list[Any]) -> None:
    """Every formula as a Python expression, every assignment; the verifier accepts those that fit and no other."""

    def python(formula: Any) -> str:
        match formula:
            case ["knight", i]:
                return f"t[{i}]"
            case ["lying", i]:
                return f"(not t[{i}])"
            case ["not", f]:
                return f"(not {python(f)})"
            case ["->", f, g]:
                return f"((not {python(f)}) or {python(g)})"
            case ["<=>", f, g]:
                return f"({python(f)} == {python(g)})"
        return f"({python(formula[1])} {formula[0]} {python(formula[2])})"

    people = ["Ann", "Bob", "Cleo"]
    fitting = []
    for t in itertools.product((True, False), repeat=3):
        truths = [bool(eval(python(s), {"t": t})) for s in statements]
        assert truths == [holds(s, t) for s in statements]
        answer = "; ".join(f"{p} is a {'knight' if k else 'knave'}" for p, k in zip(people, t, strict=True))
        fits = truths == list(t)
        fitting += [t] if fits else []
        assert score("knights_knaves", {"people": people, "statements": statements}, answer) == float(fits)
    assert solutions(statements) == fitting


@given(st.integers(0, 400), st.integers(1, 300), st.integers(0, 300))
def test_length_is_the_papers_penalty_plus_one(n: int, longest: int, buffer: int) -> None:
    """DAPO's equation 13, as printed, with L_max = longest and L_cache = buffer."""
    if buffer > longest:
        return
    if n <= longest - buffer:
        penalty = 0.0
    elif n <= longest and buffer:
        penalty = ((longest - buffer) - n) / buffer
    else:
        penalty = -1.0
    got = score("length", None, "x" * n, max_length=longest, buffer=buffer)
    assert math.isclose(got, 1 + penalty, abs_tol=1e-12)


@given(st.lists(st.sampled_from("ab"), max_size=30), st.integers(1, 4))
def test_repetition_is_one_minus_the_excess_share(words: list[str], n: int) -> None:
    text = " ".join(words)
    if not text:
        return
    grams = Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
    repeated = sum(c - 1 for c in grams.values())
    share = repeated / sum(grams.values()) if grams else 0.0
    wanted = 1 - max(0.0, share - 0.25) / 0.75
    assert math.isclose(score("repetition", None, text, ngram=n, free_share=0.25), wanted, abs_tol=1e-12)


def test_loops_score_low_and_prose_scores_one() -> None:
    assert score("repetition", None, "I am sure. " * 300) < 0.05
    assert score("repetition", None, "好" * 500) < 0.05
    assert score("repetition", None, " ".join(map(str, range(500)))) == 1.0


SAMPLES = {
    "en": "The sum of the two numbers is nine, and that is what we have been asked for in this exercise.",
    "de": "Die Summe der beiden Zahlen ist neun, und das ist die Antwort auf die Frage, die wir haben.",
    "fr": "La somme des deux nombres est neuf, et c'est la réponse que nous avons cherchée dans cette question.",
    "es": "La suma de los dos números es nueve, y esta es la respuesta que se pide en el ejercicio.",
    "it": "La somma dei due numeri è nove, e questa è la risposta che si chiede nel problema, ma non solo.",
    "pt": "A soma dos dois números é nove, e esta é a resposta que não se pede mais no exercício.",
    "nl": "De som van de twee getallen is negen, en dat is het antwoord dat we in deze vraag zoeken.",
    "sv": "Summan av de två talen är nio, och det är svaret som vi har sökt i den här frågan.",
    "pl": "Suma tych liczb jest równa dziewięć i to jest odpowiedź, o którą się pyta w tym zadaniu.",
    "tr": "Bu iki sayının toplamı dokuz olarak bulunur ve bu soru için aranan cevap da budur.",
    "vi": "Tổng của hai số là chín và đó là câu trả lời cho câu hỏi này, không có số khác.",
    "ru": "Сумма этих двух чисел равна девяти, и это ответ на вопрос, который мы так долго искали.",
    "uk": "Сума цих двох чисел дорівнює дев'яти, і це відповідь на питання, яке ми так довго шукали.",
    "ar": "مجموع العددين هو تسعة وهذا هو الجواب الذي كان من المطلوب في هذا السؤال",
    "fa": "مجموع این دو عدد نه است و این پاسخی است که در این پرسش از ما خواسته شده است",
    "hi": "दो संख्याओं का योग नौ है और यह इस प्रश्न का उत्तर है जो हम को चाहिए",
    "ja": "二つの数の和は九であり、これがこの問題の答えです。",
    "zh": "这两个数的和是九，这就是这道题的答案。",
    "ko": "두 수의 합은 아홉이며 이것이 이 문제의 답입니다.",
    "el": "Το άθροισμα των δύο αριθμών είναι εννέα και αυτή είναι η απάντηση.",
    "he": "סכום שני המספרים הוא תשע וזו התשובה לשאלה.",
    "th": "ผลรวมของตัวเลขสองจำนวนคือเก้า และนี่คือคำตอบ",
    "bn": "দুটি সংখ্যার যোগফল নয় এবং এটাই উত্তর।",
}


@pytest.mark.parametrize("code", SAMPLES)
def test_a_language_is_told_from_all_others(code: str) -> None:
    assert code in KNOWN
    assert language_of(SAMPLES[code]) == code
    for other in SAMPLES:
        wanted = [{"type": "language", "code": other}]
        assert score("instructions", wanted, SAMPLES[code]) == float(other == code)


def test_a_text_in_two_scripts_is_in_no_language() -> None:
    assert language_of(SAMPLES["en"] + SAMPLES["ru"]) is None
    assert language_of("12 + 30 = 42") is None
