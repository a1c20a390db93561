"""Countdown games against every choice of signs, the form of a search, and the cut between what is shown and asked."""

import re
from collections import Counter
from itertools import permutations, product
from statistics import fmean
from typing import NamedTuple

import pytest

from verizero.pipeline.data.generators.base import Row, generate
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.types import Attempt
from verizero.verifiers.base import load

TERMS = 3
SMALL = {"num_train": 150, "num_evaluation": 50, "num_demonstrations": 2000, "terms": TERMS}
TERM = re.compile(r"([+-]\d\d)=(\d\d)")


class Attempted(NamedTuple):
    """An attempt: the numbers with signs, the totals from the left, and whether it is called a success."""

    terms: list[int]
    totals: list[int]
    success: bool


def task_of(row: Row) -> tuple[list[int], int]:
    """Return the numbers and the target that a row asks about."""
    asked = re.fullmatch(r"([\d ]+):(\d\d)<think>", row["question"])
    return [int(number) for number in asked[1].split(" ")], int(asked[2])


def attempts_of(row: Row) -> tuple[list[Attempted], str]:
    """Return the attempts of a row's demonstration, and the answer."""
    search, end, answer = row["demonstration"].partition("</think>")
    assert end
    attempts = []
    for text in search.split(","):
        first, terms = text[:2], TERM.findall(text)
        assert text[:-1] == first + "".join(f"{term}={total}" for term, total in terms)
        assert text[-1] in "yn"
        totals = [int(total) for _, total in terms]
        attempts.append(Attempted([int(first), *(int(term) for term, _ in terms)], totals, text[-1] == "y"))
    return attempts, answer


def allowed(numbers: list[int]) -> set[tuple[int, ...]]:
    """Return every sum and difference of two to `TERMS` of the numbers, without negative totals from the left."""
    chosen = [order for size in range(2, TERMS + 1) for order in permutations(numbers, size)]
    every = [
        (first, *(sign * number for sign, number in zip(signs, others, strict=True)))
        for first, *others in chosen
        for signs in product((1, -1), repeat=len(others))
    ]
    return {terms for terms in every if min(sum(terms[:end]) for end in range(1, len(terms) + 1)) >= 0}


def test_every_target_can_be_made_and_is_none_of_the_numbers():
    split = generate("countdown", SMALL, 0)
    for row in [*split.train, *split.evaluation]:
        numbers, target = task_of(row)
        assert row["answer"] == {"numbers": numbers, "target": target, "use_all": False}
        assert target in {sum(terms) for terms in allowed(numbers)} - {0, *numbers}
        assert len(set(numbers)) == len(numbers)


@pytest.mark.run
def test_an_attempt_is_allowed_and_its_totals_are_right():
    for row in generate("countdown", SMALL, 0).demonstrations:
        numbers, _ = task_of(row)
        for terms, totals, _ in attempts_of(row)[0]:
            assert tuple(terms) in allowed(numbers)
            assert totals == [sum(terms[: end + 1]) for end in range(1, len(terms))]


def test_a_search_ends_at_its_first_success_and_answers_with_its_last_attempt():
    rows = generate("countdown", SMALL, 0).demonstrations
    for row in rows:
        _, target = task_of(row)
        attempts, answer = attempts_of(row)
        assert [attempt.success for attempt in attempts] == [attempt.totals[-1] == target for attempt in attempts]
        assert not any(attempt.success for attempt in attempts[:-1])
        assert [int(term) for term in re.findall(r"[+-]?\d\d", answer)] == attempts[-1].terms
    assert 0.05 < fmean(attempts_of(row)[0][-1].success for row in rows) < 0.5


def test_the_verifier_takes_right_demonstrations_and_refuses_those_that_gave_up():
    for row in generate("countdown", {**SMALL, "num_demonstrations": 200}, 0).demonstrations:
        (verdict,) = load("countdown").bind({}).score([Attempt(row["demonstration"], row["answer"])])
        assert (verdict.status, verdict.score) == ("graded", float(attempts_of(row)[0][-1].success))


@pytest.mark.parametrize("seed", [0, 1])
def test_depths_are_equally_many_and_only_shallow_tasks_are_demonstrated(seed):
    split = generate("countdown", SMALL, seed)
    for rows, each in ((split.evaluation, 10), (split.train, 30)):
        assert Counter(len(task_of(row)[0]) for row in rows) == dict.fromkeys(range(2, 7), each)
        assert all((row["domain"] == "countdown") == (len(task_of(row)[0]) <= 4) for row in rows)
    assert {len(task_of(row)[0]) for row in split.demonstrations} == {2, 3, 4}


def test_more_held_out_games_than_there_are_pairs_are_refused():
    """Of ten numbers there are 45 pairs, and five sizes of games."""
    with pytest.raises(ConfigError, match=r"num_evaluation=225 takes 45 .* has 45 pairs; set num_evaluation < 225"):
        generate("countdown", {**SMALL, "largest": 10, "num_evaluation": 225}, 0)
    split = generate("countdown", {**SMALL, "largest": 10, "num_evaluation": 220}, 0)
    assert Counter(len(task_of(row)[0]) for row in split.evaluation)[2] == 44
    assert any(len(task_of(row)[0]) == 2 for row in split.train)
