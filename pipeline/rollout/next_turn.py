"""The next turn of episodes that are ready: one request for each, with random numbers of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from verizero.pipeline.rollout.engine import Completion, Engine, Request, Sampling
from verizero.pipeline.rollout.episode import Playing
from verizero.pipeline.seeds import derive


@dataclass(frozen=True)
class Seeded:
    """An episode with its place among all of a call, and its random numbers."""

    playing: Playing
    first_seed: int
    """The seed of the first turn: that of a response without environment."""
    number: int
    """The place of the episode among all of the call."""
    names: tuple[str | int, ...]
    """The names of the episode's random numbers."""
    seed: int

    def turn_seed(self) -> int:
        """Return the seed of the next turn."""
        turn = self.playing.turn
        return self.first_seed if turn == 0 else derive(self.seed, "rollout", *self.names, "turn", turn)


def sample(engine: Engine, games: Sequence[Seeded], sampling: Sampling) -> None:
    """Sample the next turn of each of the episodes, and give it to them."""
    # One call for each limit: a call has one max_tokens. Equal prompts, as of a group's first turn, are one request.
    by_room: dict[int, dict[tuple[int, ...], list[Seeded]]] = {}
    for game in games:
        room = game.playing.room(sampling.max_tokens)
        by_room.setdefault(room, {}).setdefault(game.playing.ids, []).append(game)
    for room, by_ids in sorted(by_room.items()):
        requests = [
            Request(ids, tuple(g.turn_seed() for g in same), tuple(g.number for g in same))
            for ids, same in by_ids.items()
        ]
        answers = engine.generate(requests, replace(sampling, max_tokens=room))
        for same, completions in zip(by_ids.values(), answers, strict=True):
            _take(same, completions, engine.version)


def sample_one(engine: Engine, game: Seeded, sampling: Sampling) -> Completion:
    """Return the next turn of one episode, in any thread, if the engine `answers_threads`."""
    room = game.playing.room(sampling.max_tokens)
    request = Request(game.playing.ids, (game.turn_seed(),), (game.number,))
    ((completion,),) = engine.generate([request], replace(sampling, max_tokens=room))
    return completion


def _take(games: Sequence[Seeded], completions: Sequence[Completion], version: int) -> None:
    for game, completion in zip(games, completions, strict=True):
        game.playing.take(completion, version)
