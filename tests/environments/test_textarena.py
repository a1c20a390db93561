"""Games of TextArena in processes of their own: equal transcripts, known scores, word lists, kills, nothing left."""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.environments.packages import venv_with
from tests.environments.talk import said
from tests.processes import until
from verizero.pipeline.environments import textarena
from verizero.pipeline.environments.base import Reply, load
from verizero.pipeline.environments.hosts import ProcessHost
from verizero.pipeline.errors import ConfigError, DataError, EnvironmentFailed
from verizero.pipeline.types import Prompt

pytestmark = [pytest.mark.integration, pytest.mark.slow]
CELLS = [f"[{n}]" for n in range(9)]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(venv_with(tmp_path_factory.mktemp("venv") / "games", "textarena==0.7.4"))


@pytest.fixture(autouse=True)
def _places() -> Iterator[None]:
    yield
    for place in textarena._HOSTS.values():
        place.close()
    textarena._HOSTS.clear()


def game(python: str, name: str, seed: int = 5, sample: int = 2, **params: object) -> textarena.TextArena:
    bound = load("textarena").bind({"python": python, "game": name, "processes": 1, **params})
    return bound.make(Prompt("p", "", "environment", {"seed": seed}), 1, sample)  # type: ignore[return-value]


def moves_of(name: str, rng: random.Random) -> str:
    vocabulary = {
        "2048-v0-ultra-easy": ["up", "down", "left", "right"],
        "FrozenLake-v0-random": ["up", "down", "left", "right"],
        "Blackjack-v0": ["hit", "stand"],
        "Minesweeper-v0": [f"{r} {c}" for r in range(8) for c in range(8)],
    }
    return rng.choice(vocabulary[name])


def transcript(python: str, name: str, seed: int) -> Iterator[str]:
    """Yield what a player by chance is shown, one answer at a time."""
    rng, environment = random.Random(seed), game(python, name, seed)
    try:
        yield repr(environment.start())
        for _ in range(25):
            reply = environment.step(said(moves_of(name, rng)))
            yield repr(reply)
            if reply.done:
                return
    finally:
        environment.close()


@pytest.mark.parametrize("name", ["2048-v0-ultra-easy", "FrozenLake-v0-random", "Blackjack-v0", "Minesweeper-v0"])
def test_equal_seeds_give_equal_transcripts_alone_interleaved_and_in_a_new_process(python: str, name: str) -> None:
    alone = list(transcript(python, name, 5))
    open_ones = [transcript(python, name, 5), transcript(python, name, 6), transcript(python, name, 5)]
    heard: list[list[str]] = [[], [], []]
    living = {0, 1, 2}
    while living:
        for i in sorted(living):
            answer = next(open_ones[i], None)
            if answer is None:
                living.discard(i)
            else:
                heard[i].append(answer)
    assert len(alone) > 2
    assert heard[0] == alone == heard[2]
    assert heard[1] != alone
    (place,) = textarena._HOSTS.values()
    place.close()
    textarena._HOSTS.clear()
    assert list(transcript(python, name, 5)) == alone


def guesses(python: str, halving: bool, seed: int = 5) -> list[Reply]:
    environment = game(python, "GuessTheNumber-v0", seed)
    assert "between 1 and 20" in environment.start().messages[0].content
    low, high, replies = 1, 20, []
    while not (replies and replies[-1].done):
        guess = (low + high) // 2 if halving else low
        replies.append(environment.step(said(f"<think>a bit</think> {guess} ")))
        if not replies[-1].done:
            assert len(replies[-1].messages) == 1
            is_lower = "lower" in replies[-1].messages[0].content
            low, high = (low, guess - 1) if is_lower else (guess + 1, high)
    environment.close()
    return replies


def test_a_scripted_player_gets_its_known_score(python: str) -> None:
    # Five halvings find one of twenty numbers.
    for seed in range(6):
        replies = guesses(python, halving=True, seed=seed)
        assert replies[-1].outcome is not None
        assert (replies[-1].outcome.status, replies[-1].outcome.score) == ("graded", 1.0)
        assert len(replies) <= 5
    numbers = {len(guesses(python, halving=False, seed=seed)) for seed in range(6)}
    assert len(numbers) > 1, "seeds make different numbers"


def test_a_wrong_move_is_answered_and_the_second_in_a_row_is_scored(python: str) -> None:
    environment = game(python, "GuessTheNumber-v0")
    environment.start()
    first = environment.step(said("I do not know"))
    assert not first.done
    assert "invalid move" in first.messages[0].content
    second = environment.step(said(""))
    assert second.outcome is not None
    assert (second.outcome.status, second.outcome.score) == ("graded", 0.0)
    assert "Invalid Move" in second.outcome.reason
    environment.close()


def test_a_game_that_gives_words_for_a_reward_is_lost_by_an_invalid_move(python: str) -> None:
    environment = game(python, "Countdown-v0")
    environment.start()
    replies = [environment.step(said("x")), environment.step(said("x"))]
    assert replies[-1].outcome is not None
    assert replies[-1].outcome.score == 0.0
    assert "Invalid action format" in replies[-1].outcome.reason
    environment.close()


def test_rewards_are_mapped_from_their_range(python: str) -> None:
    environment = game(python, "Bandit-v0", reward_range=[-2, 2])
    environment.start()
    environment.step(said("no"))
    last = environment.step(said("no"))
    assert last.outcome is not None
    assert last.outcome.score == 0.25, "-1 in -2 to 2"
    environment.close()


def tic_tac_toe(python: str, sample: int, opponent: dict[str, object], seat: int = 0) -> tuple[list[str], Reply]:
    """Play the first free cell; return what was shown, and the end."""
    environment = game(python, "TicTacToe-v0", sample=sample, opponent=opponent, seat=seat)
    shown = [environment.start().messages[0].content]
    while True:
        board = shown[-1].rpartition("Available Moves:")[2]
        free = next(n for n in range(9) if f"[{n}]" in board)
        reply = environment.step(said(str(free)))
        if reply.done:
            environment.close()
            return shown, reply
        shown.append(reply.messages[0].content)


def test_a_scripted_opponent_plays_in_order_and_loses(python: str) -> None:
    # The policy takes 0, 1, 2. The opponent's first allowed moves are 0 (taken, so 3), then 4.
    shown, last = tic_tac_toe(python, 1, {"moves": ["[0]", "[3]", "[4]", "[5]"], "pick": "in_order"})
    assert last.outcome is not None
    assert last.outcome.score == 1.0
    assert "[Player 1] [3]" in shown[1]
    assert "[Player 1] [0]" not in shown[1], "a move that was refused leaves no trace"
    assert "invalid" not in "".join(shown)


def test_a_random_opponent_depends_on_the_episodes_seed_alone(python: str) -> None:
    games = [tic_tac_toe(python, sample, {"moves": CELLS}, seat=1) for sample in range(8)]
    assert len({"".join(shown) for shown, _ in games}) > 1
    assert tic_tac_toe(python, 3, {"moves": CELLS}, seat=1) == games[3]
    for shown, last in games:
        assert last.outcome is not None
        assert last.outcome.score in (0.0, 0.5, 1.0)
        assert "attempted an invalid move" not in "".join(shown)


def test_an_opponent_without_a_move_is_a_failure_and_no_win(python: str) -> None:
    with pytest.raises(EnvironmentFailed, match="allows none of the opponent's moves"):
        tic_tac_toe(python, 1, {"moves": ["[0]"]})


def test_word_lists_are_looked_for_at_the_start(python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NLTK_DATA", str(tmp_path))
    with pytest.raises(EnvironmentFailed, match=r"needs NLTK's data 'words'.*nltk.downloader words.*NLTK_DATA"):
        game(python, "Hangman-v0").start()
    textarena._HOSTS.popitem()[1].close()
    words = tmp_path / "corpora" / "words"
    words.mkdir(parents=True)
    for name in ("README", "en", "en-basic"):
        (words / name).write_text("apple\n")
    environment = game(python, "Hangman-v0")
    assert "Hangman" in environment.start().messages[0].content
    replies = [environment.step(said(letter)) for letter in "aple"]
    assert replies[-1].outcome is not None
    assert replies[-1].outcome.score == 1.0
    environment.close()


def test_two_hundred_episodes_leave_nothing(python: str) -> None:
    def play() -> None:
        environment = game(python, "GuessTheNumber-v0")
        environment.start()
        environment.step(said("3"))
        environment.close()

    play()
    (place,) = textarena._HOSTS.values()
    assert isinstance(place, ProcessHost)
    (far,) = place._running
    process = Path(f"/proc/{far._process.pid}/fd")

    def held() -> tuple[int, int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count(), len(os.listdir(process))

    before = held()
    for _ in range(200):
        play()
    assert held() == before
    assert far.num_open == 0
    assert far.ask({"call": "hello"}) == {"open": 0}


def test_a_killed_process_is_a_failure_and_the_next_episode_plays(python: str) -> None:
    environment = game(python, "GuessTheNumber-v0")
    environment.start()
    (place,) = textarena._HOSTS.values()
    assert isinstance(place, ProcessHost)
    far = place._running[0]
    far._process.kill()
    with pytest.raises(EnvironmentFailed, match="its process"):
        environment.step(said("3"))
    environment.close()
    until(lambda: far.is_over, "the end of the process")
    assert guesses(python, halving=True)[-1].done


def test_what_cannot_begin_says_why(python: str, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match="no game 'Hangmn-v0'; did you mean Hangman-v0"):
        game(python, "Hangmn-v0").start()
    with pytest.raises(EnvironmentFailed, match="number of players has to be 2"):
        game(python, "TicTacToe-v0").start()
    with pytest.raises(EnvironmentFailed, match=r"No module named .textarena.*pip install"):
        game(sys.executable, "Hangman-v0")
    with pytest.raises(ConfigError, match=r"no interpreter at .*nothing"):
        load("textarena").bind({"game": "x", "python": "nothing"}, tmp_path)
    with pytest.raises(ConfigError, match="seat must be 0 without an opponent"):
        load("textarena").bind({"game": "x", "seat": 1})
    with pytest.raises(ConfigError, match="two finite numbers in order"):
        load("textarena").bind({"game": "x", "reward_range": [1, 1]})
    bound = load("textarena").bind({"game": "Hangman-v0", "python": python})
    with pytest.raises(DataError, match="answer: expected null or"):
        bound.make(Prompt("p", "", "environment", "seven"), 1, 2)
