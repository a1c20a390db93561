"""Games of the package TextArena, for one player or against a scripted one, in processes that have the package.

The policy's text is its move; brackets are put around it if there are none. The task's seed, or {"seed": n} as
the row's answer, decides the game, so that a group plays the same one. The reward at the end, mapped from
`reward_range` to [0, 1], is the verdict. See docs/adapters.md for the games that run.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from verizero.pipeline.environments._answers import answer_of
from verizero.pipeline.environments._interpreters import interpreter
from verizero.pipeline.environments._scores import checked_range, verdict_of
from verizero.pipeline.environments.base import BASE, Environment, EnvironmentParams, PluginParams, Reply, Start
from verizero.pipeline.environments.hosts import FAR, EnvironmentHost, ProcessHost
from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Message, Prompt

EXAMPLE = Prompt("textarena/1", "", "environment", {"seed": 1})
GAMES = Path(__file__).with_name("_textarena_games.py")
START_S = 120.0


class Opponent(PluginParams):
    """A scripted player. It makes the first of its moves that the game allows."""

    moves: tuple[str, ...] = Field(min_length=1, description="texts, as the game reads them")
    pick: Literal["random", "in_order"] = Field("random", description="in_order: its n-th turn begins at the n-th move")


class Params(EnvironmentParams):
    """The game, and the interpreter that has it."""

    game: str = Field(description="an id of the package, e.g. FrozenLake-v0")
    options: dict[str, Any] = Field({}, description="arguments of the game in place of those of its id")
    python: str | None = Field(None, description="interpreter or virtual environment with textarena; null: this one")
    opponent: Opponent | None = Field(None, description="for a game of two players")
    seat: Literal[0, 1] = Field(0, description="the policy's, in a game of two players")
    brackets: bool = Field(True, description="put brackets around a move that has none")
    reward_range: tuple[float, float] | None = Field(
        None, description="lowest and highest reward of the game; null: [0, 1], with an opponent [-1, 1]"
    )
    processes: int = Field(2, ge=1, description="processes that play; each has one call at a time and many episodes")
    step_s: float = Field(60, gt=0, description="seconds of a move, after which the process counts as broken")

    @field_validator("python")
    @classmethod
    def _there(cls, value: str | None, info: ValidationInfo) -> str:
        return interpreter(value, (info.context or {}).get(BASE))

    @field_validator("reward_range")
    @classmethod
    def _ordered(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        return None if value is None else checked_range(value)

    @model_validator(mode="after")
    def _seated(self) -> Params:
        if self.seat and self.opponent is None:
            raise ValueError("seat must be 0 without an opponent, got 1")
        return self


class TextArena:
    """One game, played in another process."""

    def __init__(self, params: Params, remote: Environment) -> None:
        """`remote`: the game in the other process."""
        self._remote = remote
        self._range = params.reward_range or ((-1.0, 1.0) if params.opponent else (0.0, 1.0))

    def start(self) -> Start:
        """Show the rules and the board."""
        return self._remote.start()

    def step(self, message: Message) -> Reply:
        """Make a move."""
        reply = self._remote.step(replace(message, content=answer_of(message), calls=()))
        if not reply.done:
            return reply
        # None: an invalid move without a reward of its own.
        reward = self._range[0] if reply.reward is None else reply.reward
        return Reply(done=True, outcome=verdict_of(reward, self._range, reply.answer or ""))

    def close(self) -> None:
        """End the game."""
        self._remote.close()


def environment(params: Params, prompt: Prompt, task_seed: int, sample_seed: int) -> TextArena:
    """Return a new game. Raises: EnvironmentFailed if no process can be started; DataError for a malformed answer."""
    seed = prompt.reference.get("seed") if isinstance(prompt.reference, dict) else None
    if prompt.reference is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise DataError(f'answer: expected null or {{"seed": number}}, got {prompt.reference!r:.80}')
    return TextArena(params, host_of(params).make(prompt, task_seed, sample_seed))


_HOSTS: dict[tuple[int, str], EnvironmentHost] = {}
_LOCK = threading.Lock()


def host_of(params: Params) -> EnvironmentHost:
    """Return the host for these parameters. Its processes start with the first episode and end with this process."""
    # A fork cannot use the processes of its parent.
    key = os.getpid(), params.model_dump_json()
    with _LOCK:
        if key not in _HOSTS:
            _HOSTS[key] = _open_host(params)
            atexit.register(_HOSTS[key].close)
        return _HOSTS[key]


def _open_host(params: Params) -> EnvironmentHost:
    assert params.python is not None
    # One call at a time: the package's random numbers are those of the whole process.
    choice = {"path": str(GAMES) + ":game", "params": params.model_dump(mode="json"), "threads": 1}
    command = [params.python, "-P", str(FAR), json.dumps(choice)]
    return ProcessHost(command, f"textarena {params.game}", params.step_s, START_S, params.processes)
