"""What holds for every generator, each with its own oracle.

A seed gives its rows, no task is both trained on and held out, demonstrations are as often right as the noise says.
"""

import json
import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verizero.pipeline.data.generators.arithmetic import columns, compose, demonstration
from verizero.pipeline.data.generators.base import Row, generate, text_lines
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.types import Attempt
from verizero.verifiers.base import load

SMALL: dict[str, dict[str, Any]] = {
    "arithmetic": {"num_train": 500, "num_evaluation": 60, "num_demonstrations": 1200, "forms": ["+", "-"]},
    "countdown": {"num_train": 150, "num_evaluation": 50, "num_demonstrations": 300},
    "extraction": {"num_train": 200, "num_evaluation": 64},
    "guess": {"num_demonstrations": 200},
    "induction": {"num_train": 900, "num_evaluation": 80, "num_demonstrations": 1200,
                  "forms": ["linear", "minus", "shifted"]},
    "instructions": {"num_train": 360, "num_evaluation": 64},
    "repair": {"num_intercepts": 20, "num_held_out": 5, "num_demonstrations": 300},
    "sql": {"num_train": 200, "num_evaluation": 50, "num_demonstrations": 300},
}  # fmt: skip


def operands(row: Row) -> tuple[str, int, int]:
    a, operator, b = re.fullmatch(r"(\d+)([+-])(\d+)=", row["question"]).groups()
    return operator, int(a), int(b)


def function(row: Row) -> tuple[int, int]:
    """Slope and intercept, in whatever form the question shows values."""
    values = [int(v) for v in re.findall(r"=(-?\d+)", row["question"])]
    return values[1] - values[0], values[0]


def called(program: str, xs: list[int]) -> list[int]:
    scope: dict[str, Any] = {}
    exec(program, scope)
    return [scope["f"](x) for x in xs]


KEYS = {
    "arithmetic": lambda row: (operands(row)[0], *sorted(operands(row)[1:])),
    "induction": function,
    "countdown": lambda row: (frozenset(row["answer"]["numbers"]), row["answer"]["target"]),
}
"""What makes two tasks the same one, where that is more than equal questions and answers."""


@pytest.mark.parametrize("name", SMALL)
def test_a_seed_gives_its_rows_and_no_task_is_both_trained_on_and_held_out(name):
    split, again, other = (generate(name, SMALL[name], seed) for seed in (0, 0, 1))
    assert split == again
    assert split != other
    rows = [*split.train, *split.evaluation]
    assert len({r["id"] for r in rows}) == len(rows)
    assert json.loads(json.dumps([*rows, *split.demonstrations])) == [*rows, *split.demonstrations]
    for part, field in ((split.train, "num_train"), (split.evaluation, "num_evaluation")):
        assert len(part) == SMALL[name].get(field, len(part)) > 0
    key = KEYS.get(name, lambda row: (row["question"], json.dumps(row["answer"])))
    for made in (split, other):
        asked, held_out, shown = ({key(r) for r in part} for part in (made.train, made.evaluation, made.demonstrations))
        assert name == "guess" or not asked & held_out, "whose only tasks are for both"
        assert name not in KEYS or shown <= asked
        if name in ("arithmetic", "induction"):
            for part in (made.train, made.evaluation):
                assert len({r["question"] for r in part}) == len(part)


@pytest.mark.parametrize(
    ("name", "params", "wanted"),
    [
        ("arithmetic", {"digits": 1}, "num_train must be <= 0"),
        ("arithmetic", {"digits": 1, "num_train": 60, "num_evaluation": 30}, "num_train must be <= 40"),
        ("arithmetic", {"nois": 1}, "no parameter 'nois'; did you mean noise"),
        ("arithmetic", {"noise": 1.5}, "noise"),
        ("arithmetic", {"forms": ["+", "+"]}, "forms must be distinct"),
        ("extraction", {"num_train": 600, "kinds": ["person"]}, "must be <= 300 for 1 kinds, got 600"),
        ("guess", {"low": 9, "high": 8}, "low must be <= high"),
        ("induction", {"num_train": 600}, "num_train + num_evaluation must be <= 570"),
        ("induction", {"a_min": 5, "a_max": 4}, "a_max and b_max must be >= a_min and b_min"),
        ("instructions", {"num_train": 400}, "num_train must be <= 384"),
        ("instructions", {"num_evaluation": 97}, "num_evaluation must be <= 96"),
        ("instructions", {"kinds": ["sonnet"]}, "sonnet"),
        ("repair", {"num_held_out": 100}, "num_held_out must be < num_intercepts"),
    ],
)
def test_bad_parameters_say_what_is_allowed(name, params, wanted):
    with pytest.raises(ConfigError, match=re.escape(wanted)):
        generate(name, params, 0)


@given(a=st.integers(0, 10**6 - 1), b=st.integers(0, 10**6 - 1))
def test_the_scratchpad_of_a_sum_gives_the_answer(a, b):
    assert compose(columns(("+", a, b), 6)[0]) == a + b
    high, low = max(a, b), min(a, b)
    assert compose(columns(("-", high, low), 6)[0]) == high - low


@given(a=st.integers(0, 99), b=st.integers(0, 99), noise=st.sampled_from([0.0, 0.3, 1.0]), seed=st.integers(0, 10**6))
def test_columns_are_the_schoolbook_ones_and_the_answer_is_that_of_the_scratchpad(a, b, noise, seed):
    units = a % 10 + b % 10
    assert columns(("+", a, b), 2)[0] == [units, a // 10 + b // 10 + (units > 9)]
    text = demonstration(("+", a, b), 2, noise, random.Random(seed))
    pattern = r"<think>\S+=(\d+) \S+=(\d+)</think>\\boxed\{(\d+)\}"
    units, tens, answer = map(int, re.fullmatch(pattern, text).groups())
    assert answer == tens * 10 + units % 10
    assert noise or answer == a + b


def test_sums_are_right():
    split = generate("arithmetic", SMALL["arithmetic"], 3)
    for row in [*split.train, *split.evaluation]:
        operator, a, b = operands(row)
        assert row["answer"] == str(a + b if operator == "+" else a - b)
        assert int(row["answer"]) >= 0
        assert row["verifier"] == "math"


def is_right(row: Row) -> bool:
    told = row["demonstration"].partition("</think>")[2]
    if row["verifier"] == "math":
        return bool(told == f"\\boxed{{{row['answer']}}}")
    tests = row["answer"]["tests"]
    return called(told, [t["args"][0] for t in tests]) == [t["expected"] for t in tests]


@pytest.mark.run
@pytest.mark.parametrize("name", ["arithmetic", "induction"])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_demonstrations_are_as_often_right_as_the_noise_says_and_the_verifier_agrees(name, noise):
    """Both columns, or both numbers of a function, must be right; two slips hardly ever make up for each other."""
    rows = generate(name, {**SMALL[name], "noise": noise, "num_demonstrations": 4000}, 0).demonstrations
    right = [is_right(row) for row in rows]
    assert abs(sum(right) / len(rows) - (1 - noise) ** 2) < 0.03 * (noise > 0) + 1e-9
    verdicts = (
        load(rows[0]["verifier"])
        .bind()
        .score([Attempt(r["demonstration"], r["answer"], r["question"]) for r in rows[:60]])
    )
    assert {v.status for v in verdicts} == {"graded"}
    assert [v.is_correct for v in verdicts] == right[:60]


@pytest.mark.parametrize(
    ("name", "asked", "answers", "begins"),
    [
        (
            "arithmetic",
            r"(\d+\+\d+=)(?:<think>.*</think>\\boxed\{)?(\d+)",
            lambda row, answer: int(answer) == sum(operands(row)[1:]),
            "<think>",
        ),
        (
            "induction",
            r"(f\(0\)=.*?)<think>.*</think>(.*)",
            lambda row, program: called(program, [0, 1]) == [function(row)[1], sum(function(row))],
            "def f(x): return ",
        ),
    ],
)
def test_text_lines_show_the_language_are_mostly_wrong_and_never_ask_what_is_held_out(name, asked, answers, begins):
    params = {**SMALL[name], "num_train": 300, "num_text": 3000}
    del params["forms"]
    lines = text_lines(name, params, 0)
    assert lines == text_lines(name, params, 0)
    assert len(lines) == 3000
    held_out = {row["question"] for row in generate(name, params, 0).evaluation}
    found = [match for line in lines if (match := re.match(asked, line))]
    assert len(found) > 1000
    assert not {match[1] for match in found} & held_out
    assert 0.02 < sum(answers({"question": match[1]}, match[2]) for match in found) / len(found) < 0.5
    assert any(line.startswith(begins) for line in lines)


def test_noise_makes_the_function_that_the_scratchpad_says():
    params = {**SMALL["induction"], "forms": ["linear"], "num_train": 300, "noise": 0.5}
    for row in generate("induction", params, 0).demonstrations:
        _, b, a, program = re.fullmatch(r"<think>(\d+)-(\d+)=(\d+)</think>(.*)", row["demonstration"]).groups()
        assert program == f"def f(x): return {a}*x+{b}"


def test_hinted_demonstrations_are_right_and_show_a_right_response_or_what_a_check_finds_in_a_wrong_one():
    params = {"num_train": 300, "num_evaluation": 80, "num_demonstrations": 900, "noise": 1.0}
    plain, split = generate("induction", params, 0), generate("induction", {**params, "hinted": 0.5}, 0)
    assert (split.train, split.evaluation) == (plain.train, plain.evaluation)
    pairs = list(zip(plain.demonstrations, split.demonstrations, strict=True))
    hinted = [row for _, row in pairs if "\n" in row["question"]]
    assert all(row == before for before, row in pairs if row not in hinted)
    assert 0.4 < len(hinted) / len(pairs) < 0.6
    with_right = 0
    for row in hinted:
        assert is_right(row)
        test, hint = row["answer"]["tests"][0], row["question"].partition("\n")[2]
        with_right += hint == f"right: {row['demonstration']}"
        if not hint.startswith("right: "):
            wrong = f"found: wrong_answer: test 1: for {test['args']} expected {test['expected']}, got "
            assert int(hint.removeprefix(wrong)) != test["expected"]
    assert 0.4 < with_right / len(hinted) < 0.6
