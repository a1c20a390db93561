"""Games of letter_game with known ends."""

from pathlib import Path

import pytest

from verizero.pipeline.commands.environment import check
from verizero.pipeline.environments.base import load
from verizero.pipeline.types import Message, Prompt

HERE = Path(__file__).parent


def play(letter: str, moves: str, **params: object):
    """Return what the environment answers to each move, and its last reply."""
    bound = load(path="letter_game.py:letter_game", base=HERE).bind(params)
    environment = bound.make(Prompt(letter, "letter?", "environment", letter), 0, 0)
    environment.start()
    replies = [environment.step(Message("assistant", move)) for move in moves]
    environment.close()
    return [m.content for r in replies for m in r.messages], replies[-1]


@pytest.mark.parametrize(
    ("letter", "moves", "answers"), [("c", "c", []), ("c", "dbc", ["before", "after"]), ("h", "dfh", ["after"] * 2)]
)
def test_a_letter_that_is_named_in_time_wins(letter: str, moves: str, answers: list) -> None:
    seen, last = play(letter, moves)
    assert seen == answers
    assert last.done
    assert last.outcome.score == 1.0


def test_the_tries_end() -> None:
    _, last = play("h", "abc")
    assert last.done
    assert last.outcome.score == 0.0
    assert not play("h", "abc", tries=4)[1].done


def test_it_is_fit_for_training() -> None:
    report = check("letter_game.py:letter_game", rows=HERE / "letter_game_evaluation.jsonl", base=HERE)
    assert report.passed, str(report)
