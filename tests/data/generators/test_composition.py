"""Compositions against tables of their own, the form of a scratchpad, and the cut between what is shown and asked."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from pipeline.data.generators.base import Row, generate
from pipeline.data.generators.composition import FUNCTIONS, Params, value
from pipeline.errors import ConfigError

SMALL = {"num_train": 800, "num_evaluation": 80, "num_demonstrations": 1500}
STEP = re.compile(r"([a-j])(\d\d)")


def by_hand(number: int, letters: str) -> int:
    """Return what the letters make of a number, by its text."""
    for letter in letters:
        t, u = (int(d) for d in f"{number:02d}")
        t, u = {
            "a": (t + 1, u),
            "b": (t, u + 3),
            "c": (u, t),
            "d": (9 - t, u),
            "e": (t, 9 - u),
            "f": (t * 3, u),
            "g": (t, u * 7),
            "h": (t + u, u),
            "i": (t, t + u),
            "j": (t + 5, u + 5),
        }[letter]
        number = int(f"{t % 10}{u % 10}")
    return number


def task_of(row: Row) -> tuple[int, str]:
    """Return the number and the letters that a row asks about."""
    return int(row["question"][:2]), row["question"][2:-1]


def steps_of(row: Row) -> list[tuple[str, int]]:
    """Return the letters that each step of a row's demonstration takes, and the number that it leads to."""
    written = re.fullmatch(r"<think>(.*)</think>(\d\d)", row["demonstration"])
    assert written is not None
    steps, (_, letters) = [], task_of(row)
    for step in written[1].split(" "):
        named = STEP.fullmatch(step)
        assert named is not None
        end = letters.index(named[1]) + 1
        steps.append((letters[:end], int(named[2])))
        letters = letters[end:]
    assert letters == ""
    assert written[2] == f"{steps[-1][1]:02d}"
    return steps


def test_every_function_is_one_to_one_and_is_what_the_table_says() -> None:
    for letter in FUNCTIONS:
        assert len({value((number, letter)) for number in range(100)}) == 100
    for row in generate("composition", {**SMALL, "num_functions": 10, "depth": 10}, 0).train:
        assert row["answer"] == str(by_hand(*task_of(row)))
        assert json.loads(json.dumps(row)) == row


def test_a_demonstration_takes_the_letters_in_order_and_ends_with_the_answer() -> None:
    for row in generate("composition", {**SMALL, "noise": 0.0}, 0).demonstrations:
        number, letters = task_of(row)
        steps = steps_of(row)
        assert "".join(taken for taken, _ in steps) == letters
        for taken, after in steps:
            number = by_hand(number, taken)
            assert after == number
        assert number == int(row["answer"])


def test_noise_leads_to_the_wrong_answer_that_follows_from_it() -> None:
    rows = generate("composition", {**SMALL, "noise": 0.4}, 0).demonstrations
    wrong = [row for row in rows if steps_of(row)[-1][1] != int(row["answer"])]
    assert 0.3 < len(wrong) / len(rows) < 0.7
    for row in rows:
        number, _ = task_of(row)
        for taken, after in steps_of(row):
            assert abs(after - by_hand(number, taken)) <= 1
            number = after


@pytest.mark.parametrize(("jump", "steps"), [(0.0, 3), (1.0, 1)])
def test_the_chance_of_a_jump_decides_how_many_letters_a_step_takes(jump: float, steps: int) -> None:
    rows = generate("composition", {**SMALL, "jump": jump}, 0).demonstrations
    assert {len(steps_of(row)) for row in rows if len(task_of(row)[1]) == 3} == {steps}


@pytest.mark.parametrize("seed", [0, 1])
def test_depths_are_equally_many_and_only_shallow_tasks_are_demonstrated(seed: int) -> None:
    split = generate("composition", SMALL, seed)
    for rows, each in ((split.evaluation, 10), (split.train, 100)):
        assert Counter(len(task_of(row)[1]) for row in rows) == dict.fromkeys(range(1, 9), each)
        assert all((row["domain"] == "composition") == (len(task_of(row)[1]) <= 3) for row in rows)
        assert all(len(set(task_of(row)[1])) == len(task_of(row)[1]) for row in rows)
    assert {len(task_of(row)[1]) for row in split.demonstrations} == {1, 2, 3}
    train, held_out = {task_of(row) for row in split.train}, {task_of(row) for row in split.evaluation}
    assert not train & held_out
    assert {task_of(row) for row in split.demonstrations} <= train
    assert len(train) == len(split.train)


def test_held_out_tasks_do_not_depend_on_how_many_are_trained_on() -> None:
    few, many = (generate("composition", {**SMALL, "num_train": n}, 0) for n in (80, 800))
    assert few.evaluation == many.evaluation


def test_a_depth_with_few_tasks_keeps_its_held_out_ones() -> None:
    """Two letters and 100 numbers make 200 tasks of one letter."""
    split = generate("composition", {"num_functions": 2, "shown_depth": 1, "depth": 2, "num_train": 1000}, 0)
    assert Counter(len(task_of(row)[1]) for row in split.train) == {1: 200 - 128, 2: 200 - 128}


def test_depths_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="shown_depth=3, depth=8, num_functions=5"):
        generate("composition", {"num_functions": 5}, 0)
    with pytest.raises(ConfigError, match="num_evaluation"):
        generate("composition", {"num_functions": 2, "shown_depth": 1, "depth": 2, "num_evaluation": 500}, 0)


def test_equal_seeds_give_equal_rows() -> None:
    assert generate("composition", SMALL, 3) == generate("composition", SMALL, 3)
    assert generate("composition", SMALL, 3) != generate("composition", SMALL, 4)
    assert Params().depth == 8
