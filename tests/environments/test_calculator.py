"""The calculator against Python's own fractions, and expressions that would cost too much."""

import random
from fractions import Fraction

import pytest

from tests.environments.talk import made, played, texts
from verizero.pipeline.environments.tools import calculator
from verizero.pipeline.environments.tools.base import WrongCall
from verizero.pipeline.environments.tools.calculator import evaluate, shown
from verizero.pipeline.types import Prompt

PROMPT = Prompt("p", "q", "environment", None)


def _expression(rng: random.Random, depth: int) -> tuple[str, Fraction]:
    """A random expression and its value, worked out while it is written."""
    if depth == 0 or rng.random() < 0.2:
        number = rng.randrange(100)
        return str(number), Fraction(number)
    (a, x), (b, y) = _expression(rng, depth - 1), _expression(rng, depth - 1)
    sign = rng.choice("+-*/")
    if sign == "/" and y == 0:
        sign = "+"
    value = {"+": x + y, "-": x - y, "*": x * y, "/": x / (y or 1)}[sign]
    return f"({a}) {sign}({b})", value


def test_random_expressions_have_the_value_of_exact_arithmetic():
    rng = random.Random(0)
    for _ in range(500):
        text, value = _expression(rng, 4)
        assert evaluate(text) == value, text


@pytest.mark.parametrize(
    "text",
    ["1+2*3", "-2**2", "2**3**2", "2**-1", "7//2", "-7//2", "-7%3", "1-2-3", "8/4/2", "2*-3", "--4", "1+-1", "(1+2)*3",
     " 1 +  2 ", "2*3%4", "10-4//3*2"],
)  # fmt: skip
def test_the_order_of_signs_is_pythons(text):
    assert evaluate(text) == Fraction(eval(text))


@pytest.mark.parametrize(
    ("text", "result"),
    [("1/3", "0.333333333333"), ("1/4", "0.25"), ("4/2", "2"), ("0.1+0.2", "0.3"), ("2^10", "1024"), ("-1/8", "-0.125"),
     ("10**400", "1" + "0" * 400), ("1/10**20", "1e-20"), ("0**0", "1"), ("(-1)**999999999", "-1"), ("1**(10**9)", "1"),
     ("0**(10**9)", "0"), (".5*4", "2")],
)  # fmt: skip
def test_results_as_they_are_shown(text, result):
    assert shown(evaluate(text)) == result


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("9**9**9**9", "the power is too large"),
        ("2**5000", "the power is too large"),
        ("(1/3)**5000", "the power is too large"),
        ("2**(1/2)", "an exponent must be an integer"),
        ("(" * 200 + "1" + ")" * 200, "more than 40 brackets"),
        ("-" * 400 + "1", "more than 40 brackets and signs"),
        ("2^" * 249 + "1", "more than 40 brackets and signs"),
        ("*".join(["(" + "9" * 9 + "^99)"] * 5), "the number is too large"),
        ("1" * 501, "501 characters, at most 500"),
        ("1/0", "division by zero"),
        ("0**-1", "division by zero"),
        *((text, "cannot be read: write numbers with") for text in ("", "1+", "(1", "1 2", "1)", "2(3)", "()")),
        ("__import__('os')", "cannot read __import__"),
        ("1e9", "cannot read e9"),
        ("٣+1", "cannot read"),
    ],
)
def test_what_is_refused(text, words):
    with pytest.raises((ValueError, ZeroDivisionError), match=words):
        evaluate(text)


def test_a_long_sum_is_no_deep_one():
    assert evaluate("1" + "+1" * 249) == 250


def test_operations_take_two_numbers_of_any_size():
    tools = calculator.tools(calculator.Params(form="operations"), PROMPT).tools
    assert list(tools) == ["add", "sub", "mul", "div"]
    assert tools["add"].schema.parameters["properties"]["b"] == {"type": "number"}
    big = 10**30 + 1
    assert tools["add"].answer({"a": big, "b": "-2"}) == str(big - 2)
    assert tools["sub"].answer({"a": 1, "b": 2.5}) == "-1.5"
    assert tools["div"].answer({"a": 1, "b": 8}) == "0.125"
    for arguments in ({"a": 1, "b": "1e9"}, {"a": "x", "b": 1}, {"a": 1, "b": "9" * 501}):
        with pytest.raises(WrongCall, match="is not a number"):
            tools["mul"].answer(arguments)


def test_the_environment_grades_the_last_message_exactly():
    moves = [("mul", {"a": 27, "b": 58}), ("add", {"a": 1566, "b": 14}), " 1580\n"]
    replies = played(made("calculator", "1580"), moves)
    assert texts(replies) == ["1566", "1580"]
    assert [r.done for r in replies] == [False, False, True]
    assert replies[-1].outcome.is_correct
    assert [u.name for r in replies for u in r.uses] == ["mul", "add"]
    for wrong in ("1581", "1580.0", "01580", "1580 1581", "<think>1580"):
        assert not played(made("calculator", "1580"), [wrong])[-1].outcome.is_correct
    assert played(made("calculator", "1580"), ["<think>1581</think>1580"])[-1].outcome.is_correct
    assert played(made("calculator", "1580"), [""])[-1].outcome.status == "no_answer"
