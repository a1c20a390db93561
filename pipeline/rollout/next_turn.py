"""The next turn of episodes that are ready: one request for each, with random numbers of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from verizero.pipeline.rollout.engine import Completion, Engine, Request, Sampling
from verizero.pipeline.rollout.episode import OpenEpisode
from verizero.pipeline.seeds import derive


@dataclass(frozen=True)
class SeededEpisode:
    """An open episode, its index in a call of `play`, and its random numbers."""

    episode: OpenEpisode
    index: int
    """The index of the episode among all of the call."""
    first_seed: int
    """The seed of the first turn: that of a response without environment."""
    seed: int
    """The root of all random numbers."""
    seed_names: tuple[str | int, ...]
    """The names from which the seeds of later turns are derived."""

    def turn_seed(self) -> int:
        """Return the seed of the next turn."""
        turn = self.episode.turn
        return self.first_seed if turn == 0 else derive(self.seed, "rollout", *self.seed_names, "turn", turn)


def sample(engine: Engine, episodes: Sequence[SeededEpisode], sampling: Sampling) -> None:
    """Sample the next turn of each of the episodes, and give it to them."""
    # One call for each limit: a call has one max_tokens. Equal prompts, as of a group's first turn, are one request.
    by_room: dict[int, dict[tuple[int, ...], list[SeededEpisode]]] = {}
    for seeded in episodes:
        room = seeded.episode.room(sampling.max_tokens)
        by_room.setdefault(room, {}).setdefault(seeded.episode.ids, []).append(seeded)
    for room, by_ids in sorted(by_room.items()):
        requests = [
            Request(ids, tuple(s.turn_seed() for s in same), tuple(s.index for s in same))
            for ids, same in by_ids.items()
        ]
        answers = engine.generate(requests, replace(sampling, max_tokens=room))
        for same, completions in zip(by_ids.values(), answers, strict=True):
            for seeded, completion in zip(same, completions, strict=True):
                seeded.episode.take(completion, engine.version)


def sample_one(engine: Engine, seeded: SeededEpisode, sampling: Sampling) -> Completion:
    """Return the next turn of one episode, in any thread, if the engine `answers_threads`."""
    room = seeded.episode.room(sampling.max_tokens)
    request = Request(seeded.episode.ids, (seeded.turn_seed(),), (seeded.index,))
    ((completion,),) = engine.generate([request], replace(sampling, max_tokens=room))
    return completion
