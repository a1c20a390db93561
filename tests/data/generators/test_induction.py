"""Programs against Python itself, and the cut between training and evaluation."""

import re

import pytest

from verizero.pipeline.data.generators import induction
from verizero.pipeline.data.generators.base import generate, text_lines
from verizero.pipeline.data.generators.induction import Params

ALL = ["linear", "minus", "shifted"]
SMALL = {"num_train": 300, "num_evaluation": 80, "num_demonstrations": 900, "num_text": 300}


def _run(program: str, xs: list[int]) -> list[int]:
    scope: dict = {}
    exec(program, scope)
    return [scope["f"](x) for x in xs]


def _function(question: str) -> tuple[int, int]:
    values = [int(v) for v in re.findall(r"=(-?\d+)", question)]
    return values[1] - values[0], values[0]


@pytest.mark.parametrize("forms", [["linear"], ALL])
def test_right_demonstrations_pass_the_hidden_tests_when_run(forms):
    split = generate("induction", {**SMALL, "forms": forms, "noise": 0.0}, 0)
    for row in split.demonstrations:
        program = row["demonstration"].partition("</think>")[2]
        tests = row["answer"]["tests"]
        assert _run(program, [t["args"][0] for t in tests]) == [t["expected"] for t in tests]


@pytest.mark.parametrize("seed", [0, 1])
def test_no_function_is_trained_on_and_held_out_in_any_form(seed):
    split = generate("induction", {**SMALL, "forms": ALL, "num_train": 900}, seed)
    train = [_function(r["question"]) for r in split.train]
    evaluation = [_function(r["question"]) for r in split.evaluation]
    assert not set(train) & set(evaluation)
    assert len(set(train)) == 900 == len(train)
    assert len(set(evaluation)) == 80 == len(evaluation)
    assert {_function(r["question"]) for r in split.demonstrations} <= set(train)


def test_noise_makes_the_function_that_the_scratchpad_says():
    rows = generate("induction", {**SMALL, "noise": 0.5, "num_demonstrations": 3000}, 0).demonstrations
    right = 0
    for row in rows:
        _, b, a, program = re.fullmatch(r"<think>(\d+)-(\d+)=(\d+)</think>(.*)", row["demonstration"]).groups()
        assert program == f"def f(x): return {a}*x+{b}"
        right += (int(a), int(b)) == _function(row["question"])
    assert abs(right / len(rows) - 0.5 * 0.5) < 0.03


def test_text_lines_ask_only_of_training_functions_and_are_mostly_wrong():
    params = Params(**{**SMALL, "num_text": 3000})
    lines = induction.text_lines(params, 0)
    held_out = {r["question"] for r in induction.rows(params, 0).evaluation}
    pairs = [(m[1], m[2]) for line in lines if (m := re.match(r"(f\(0\)=.*?)<think>.*</think>(.*)", line))]
    assert len(pairs) > 1000
    assert not {question for question, _ in pairs} & held_out
    right = sum(_run(program, [0, 1]) == [_function(q)[1], sum(_function(q))] for q, program in pairs) / len(pairs)
    assert 0.02 < right < 0.5
    assert any(line.startswith("def f(x): return ") for line in lines)
    assert text_lines("induction", {**SMALL, "num_text": 3000}, 0) == lines


def test_hinted_demonstrations_are_right_and_show_a_right_response_or_what_a_check_finds_in_a_wrong_one():
    plain = generate("induction", {**SMALL, "noise": 1.0}, 0)
    split = generate("induction", {**SMALL, "noise": 1.0, "hinted": 0.5}, 0)
    assert (split.train, split.evaluation) == (plain.train, plain.evaluation)
    pairs = list(zip(plain.demonstrations, split.demonstrations, strict=True))
    hinted = [row for _, row in pairs if "\n" in row["question"]]
    assert all(row == before for before, row in pairs if row not in hinted)
    assert 0.4 < len(hinted) / len(pairs) < 0.6
    with_right = 0
    for row in hinted:
        program = row["demonstration"].partition("</think>")[2]
        test = row["answer"]["tests"][0]
        assert _run(program, test["args"]) == [test["expected"]]
        hint = row["question"].partition("\n")[2]
        with_right += hint == f"right: {row['demonstration']}"
        if not hint.startswith("right: "):
            got = hint.removeprefix(
                f"found: wrong_answer: test 1: for {test['args']} expected {test['expected']}, got "
            )
            assert int(got) != test["expected"]
    assert 0.4 < with_right / len(hinted) < 0.6
