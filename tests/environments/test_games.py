"""Games with known ends; what the policy may see and what not."""

import pytest

from tests.environments.talk import made, played, texts
from verizero.pipeline.environments.base import load
from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Prompt


def test_halving_finds_31_of_32_numbers():
    won = 0
    for number in range(1, 33):
        environment, low, high = made("guess", number), 1, 32
        environment.start()
        for _ in range(5):
            guess = (low + high) // 2
            (reply,) = played_on(environment, str(guess))
            if reply.done:
                won += reply.outcome.is_correct
                assert reply.outcome.is_correct == (guess == number)
                break
            assert texts([reply]) == ["higher" if guess < number else "lower"]
            low, high = (guess + 1, high) if guess < number else (low, guess - 1)
    assert won == 31


def played_on(environment, *moves):
    """Answers to further moves of an episode that is begun."""
    from tests.environments.talk import said

    return [environment.step(said(m)) for m in moves]


@pytest.mark.parametrize("word", ["", "33", "0", "-4", "16.0", "16 17", "sixteen", "٣", "9" * 400, "<think>16"])
def test_what_is_no_number_of_the_range_uses_up_a_try(word):
    replies = played(made("guess", 16, tries=2), [word, word])
    assert texts(replies) == ["a number from 1 to 32"]
    assert (replies[-1].done, replies[-1].outcome.score, replies[-1].outcome.reason) == (True, 0.0, "out_of_tries")


def test_a_row_without_a_number_gets_one_by_its_task_seed():
    bound = load("guess").bind({"high": 1000})
    numbers = [
        bound.make(Prompt("p", "q", "environment", None), seed, sample).number
        for seed in range(50)
        for sample in (1, 2)
    ]
    assert numbers[::2] == numbers[1::2], "one task for all members of a group"
    assert len(set(numbers)) > 40
    assert all(1 <= n <= 1000 for n in numbers)


@pytest.mark.parametrize("reference", [0, 33, "x", {"a": 1}, 1.5, True])
def test_a_number_outside_is_refused(reference):
    with pytest.raises(DataError, match="expected a number from 1 to 32"):
        made("guess", reference)
