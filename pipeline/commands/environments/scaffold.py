"""Write a new environment that works: its file, its tests, rows to play, and a recipe that trains on them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from verizero.pipeline.commands.scaffold import Rows, write_part
from verizero.pipeline.seeds import stream

EXAMPLE = Path(__file__).parent / "example.py"
LETTERS, TRIES, GAMES = "abcdefgh", 3, 40
"""Eight letters in three tries, and games shown of each letter: a player that halves finds seven of eight."""

TESTS = '''"""Games of {name} with known ends."""

from pathlib import Path

import pytest

from verizero.pipeline.commands.environments.check import check
from verizero.pipeline.environments.base import load
from verizero.pipeline.types import Message, Prompt

HERE = Path(__file__).parent


def play(letter: str, moves: str, **params: object):
    """Return what the environment answers to each move, and its last reply."""
    bound = load(path="{name}.py:{name}", base=HERE).bind(params)
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
    assert last.done and last.outcome.score == 1.0


def test_the_tries_end() -> None:
    _, last = play("h", "abc")
    assert last.done and last.outcome.score == 0.0
    assert not play("h", "abc", tries=4)[1].done


def test_it_is_fit_for_training() -> None:
    report = check("{name}.py:{name}", rows=HERE / "{name}_evaluation.jsonl", base=HERE)
    assert report.passed, str(report)
'''

RECIPE = """# {name}: an environment of your own, from nothing to a trained model.
# Shows:    episodes of several turns (source.environment), SFT on games and then RL.
# Hardware: two CPU cores, 1 GB of memory.
name: {name}
seed: 0
stages: [sft, rl]

model:
  create:
    model_type: qwen2
    config:
      hidden_size: 64
      intermediate_size: 192
      num_hidden_layers: 2
      num_attention_heads: 4
      num_key_value_heads: 4
      max_position_embeddings: 64
      tie_word_embeddings: true
    characters: "abcdefghlrtof?\\n"

data:
  train:
    - file: {name}_train.jsonl
      environment: {{path: "{name}.py:{name}", params: {{tries: {tries}}}}}
  evaluation:
    - file: {name}_evaluation.jsonl
      environment: {{path: "{name}.py:{name}", params: {{tries: {tries}}}}}

sft:
  steps: 300
  batch_size: 64
  optimizer: {{learning_rate: 3e-3, schedule: cosine, warmup_steps: 20}}

rl:
  algorithm: {{name: grpo}}
  rounds: 2
  steps_per_round: 40
  prompts_per_step: 8
  group_size: 32
  optimizer: {{learning_rate: 1e-3}}

rollout:
  max_response_tokens: 4

evaluation:
  k: 32
"""


def new_environment(name: str, folder: Path) -> list[Path]:
    """Write a new environment `name`: its code, tests, rows to train on and to evaluate, and a recipe.

    Returns the files' paths. The example is a game of letters. It works, and is meant to be replaced.
    Raises: ConfigError if the name is not an identifier, is taken, or a file exists already.
    """
    files: dict[str, str | Rows] = {
        f"{name}.py": EXAMPLE.read_text(encoding="utf-8").replace("letter_game", name),
        f"test_{name}.py": TESTS.format(name=name),
        f"{name}_train.jsonl": _games(),
        f"{name}_evaluation.jsonl": [_row(letter, f"{letter}/evaluation") for letter in LETTERS],
        f"{name}.yaml": RECIPE.format(name=name, tries=TRIES),
    }
    return write_part("environment", name, folder, files)


def _games() -> list[dict[str, Any]]:
    """Return rows with games of a player that names any letter that the answers leave."""
    rng = stream(0, "scaffold", "environment")
    games = [(letter, i) for i in range(GAMES) for letter in LETTERS]
    return [{**_row(letter, f"{letter}/{i}"), "demonstration": _game(letter, rng)} for letter, i in games]


def _game(letter: str, rng: random.Random) -> list[dict[str, str]]:
    messages, rest = [], LETTERS
    for number in range(TRIES):
        move = rng.choice(rest)
        messages.append({"role": "assistant", "content": move})
        if move == letter or number == TRIES - 1:
            break
        is_before = letter < move
        messages.append({"role": "user", "content": "before" if is_before else "after"})
        rest = rest[: rest.index(move)] if is_before else rest[rest.index(move) + 1 :]
    return messages


def _row(letter: str, key: str) -> dict[str, Any]:
    return {"id": key, "question": "letter?", "answer": letter, "verifier": "environment"}
