"""Tasks in turns: floors by arithmetic and by play, and demonstrations against the environments."""

import json
import math
import random
from functools import lru_cache

import pytest

from tests.data.generators.test_every import SMALL
from verizero.pipeline.data.generators import guess, repair, sql
from verizero.pipeline.data.generators.base import Row, generate
from verizero.pipeline.environments.base import load
from verizero.pipeline.types import Call, Message, Prompt

PLAYS = 8000


def replayed(row: Row) -> tuple[list[tuple[str, str]], float]:
    """What the environment shows where the demonstration's moves are made, and the score at the end."""
    environment = load(row["environment"]).bind().make(Prompt("p", row["question"], "environment", row["answer"]), 1, 2)
    environment.start()
    shown: list[tuple[str, str]] = []
    reply = None
    for turn, move in enumerate(m for m in row["demonstration"] if m["role"] == "assistant"):
        assert reply is None or not reply.done
        calls = tuple(Call(f"{turn}-{i}", c["name"], c["arguments"]) for i, c in enumerate(move.get("calls", [])))
        reply = environment.step(Message("assistant", move["content"], calls))
        shown += [(m.role, m.content) for m in reply.messages]
    environment.close()
    assert reply.done
    return shown, reply.outcome.score


@pytest.mark.parametrize("name", ["guess", "sql", pytest.param("repair", marks=pytest.mark.run)])
def test_demonstrations_hold_what_the_environment_answers(name):
    """Played again; noise makes some of them lose."""
    scores = []
    for row in generate(name, SMALL[name], 3).demonstrations[:100]:
        shown, score = replayed(row)
        assert shown == [(m["role"], m["content"]) for m in row["demonstration"] if m["role"] != "assistant"]
        scores.append(score)
    assert 0 < sum(scores) < len(scores)


def share(name: str, play) -> float:
    """The share of `PLAYS` that the noisy player wins."""
    rng = random.Random(0)
    return sum(play(rng) for _ in range(PLAYS)) / PLAYS


def near(observed: float, exact: float) -> bool:
    """True within four standard deviations."""
    return abs(observed - exact) < 4 * math.sqrt(exact * (1 - exact) / PLAYS)


@lru_cache(maxsize=4096)
def floor(numbers: int, tries: int) -> float:
    """Return the exact chance of that player to guess one of so many numbers."""
    if numbers == 0 or tries == 0:
        return 0.0
    # A guess at place i is right for one number of all; i numbers are lower and the others higher.
    ways = (i * floor(i, tries - 1) + (numbers - 1 - i) * floor(numbers - 1 - i, tries - 1) for i in range(numbers))
    return sum(1 + way for way in ways) / numbers**2


@pytest.mark.run
def test_the_floor_of_guess():
    params = guess.Params()
    exact = floor(32, 5)
    assert round(exact, 4) == 0.5326
    won = share("guess", lambda rng: guess.play(params, rng.randint(1, 32), rng)[1].is_correct)
    assert near(won, exact)
    assert [floor(n, 1) for n in (1, 2, 4)] == [1.0, 0.5, 0.25]
    # By hand: of two numbers in two tries, both are found; of three, the first guess in the middle always is enough.
    assert floor(2, 2) == pytest.approx(1.0)
    assert floor(3, 2) == pytest.approx((1 / 3) * 1 + (2 / 3) * (1 / 3 + 2 / 3 * 0.5))


@pytest.mark.run
def test_the_floor_of_sql():
    params = sql.Params()
    task = sql._task(random.Random(1))
    known = {}

    def won(rng):
        words = sql._turns(params, task, rng)
        if (key := json.dumps(words)) not in known:  # the verdict depends on the player's words alone
            known[key] = sql.answered(task, words)[1].is_correct
        return known[key]

    assert near(share("sql", won), 0.7**2)
    again = [(random.Random(seed), random.Random(seed)) for seed in range(300)]
    assert [sql.play(params, task, rng)[1].is_correct for rng, _ in again] == [won(rng) for _, rng in again]


def test_the_floor_of_repair_and_the_limit_without_its_tests():
    params = repair.Params()
    tasks = [t for t, _ in repair._tasks(list(range(100)), random.Random(0))]
    rng = random.Random(1)
    plays = [repair.play(params, rng.choice(tasks), rng) for _ in range(PLAYS)]
    first = sum(len(messages) == 1 for messages, _ in plays) / PLAYS
    slips, heeds = params.noise, params.heeds
    assert near(first, 0.5 * (1 - slips))
    # A later try: of a function with another slope, by the test or by chance; of slope 1, by the test alone.
    other = heeds * (1 - slips) + (1 - heeds) / 8
    usual = heeds * (1 - slips)
    exact = 0.5 * (1 - slips) + 0.5 * slips * (1 - (1 - usual) ** 2) + 0.5 * (1 - (1 - other) ** 2)
    assert near(sum(won for _, won in plays) / PLAYS, exact)
    blind = sum(slope == 1 or slope in (2, 3) for slope, _ in tasks) / len(tasks)
    assert blind == 0.625, "the best three guesses without tests"
