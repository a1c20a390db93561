"""Games and retries with known ends; what the policy may see and what not."""

from __future__ import annotations

import pytest

from tests.environments.talk import made, played, texts
from verizero.pipeline.environments.base import load
from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Prompt


def test_halving_finds_31_of_32_numbers() -> None:
    won = 0
    for number in range(1, 33):
        environment, low, high = made("guess", number), 1, 32
        state = environment.start().state
        assert state == "1 to 32, 5 left"
        for left in range(4, -1, -1):
            guess = (low + high) // 2
            (reply,) = played_on(environment, str(guess))
            if reply.done:
                won += reply.outcome.is_correct
                assert reply.outcome.is_correct == (guess == number)
                break
            assert texts([reply]) == ["higher" if guess < number else "lower"]
            low, high = (guess + 1, high) if guess < number else (low, guess - 1)
            assert reply.state == f"{low} to {high}, {left} left"
    assert won == 31


def played_on(environment, *moves):
    """Answers to further moves of an episode that is begun."""
    from tests.environments.talk import said

    return [environment.step(said(m)) for m in moves]


@pytest.mark.parametrize("word", ["", "33", "0", "-4", "16.0", "16 17", "sixteen", "٣", "9" * 400, "<think>16"])
def test_what_is_no_number_of_the_range_uses_up_a_try(word: str) -> None:
    replies = played(made("guess", 16, tries=2), [word, word])
    assert texts(replies) == ["a number from 1 to 32"]
    assert (replies[-1].done, replies[-1].outcome.score, replies[-1].outcome.reason) == (True, 0.0, "out_of_tries")


def test_thinking_and_spaces_are_no_part_of_a_guess() -> None:
    assert played(made("guess", "16"), ["<think>8? no, 7</think> 16\n"])[-1].outcome.is_correct


def test_a_row_without_a_number_gets_one_by_its_task_seed() -> None:
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
def test_a_number_outside_is_refused(reference: object) -> None:
    with pytest.raises(DataError, match="expected a number from 1 to 32"):
        made("guess", reference)


def test_retry_asks_again_until_no_try_is_left() -> None:
    replies = played(made("retry", " 42 ", tries=3), ["41", "", "<think>41</think>42"])
    assert texts(replies) == ["wrong, try again"] * 2
    assert replies[-1].outcome.is_correct
    lost = played(made("retry", 42, tries=2, words="no"), ["41", "4 2"])
    assert texts(lost) == ["no"]
    assert (lost[-1].done, lost[-1].outcome.score) == (True, 0.0)
    assert played(made("retry", 42), ["42"])[-1].done


def test_the_answer_is_in_no_observation() -> None:
    for name, reference in (("guess", 23), ("retry", "23")):
        environment = made(name, reference)
        start = environment.start()
        replies = played_on(environment, "7", "9")
        assert "23" not in repr(start) + repr([(r.messages, r.state) for r in replies])
