"""The rows of a rollout: the token sequences that the engine computed, and which of their tokens train."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from verizero.pipeline.errors import DataError, EngineError
from verizero.pipeline.types import KeptTokens, Rollout, Turn

ROUNDING = 1e-4
"""The log-prob of a certain token may exceed 0 by this much, by rounding."""


def rows(rollout: Rollout) -> tuple[tuple[Turn, ...], ...]:
    """Return the turns of each row of the rollout; a single response is one row of one turn."""
    return (tuple(rollout.turns),) if rollout.episode is None else rollout.episode.rows


@dataclass(frozen=True, slots=True)
class Span:
    """The tokens of one turn that train, at positions `start` to `stop` of their row.

    Example: Span(start=2, stop=4, number=0, turn=Turn((7, 9), (4, 1), (-0.1, -0.7), "stop", 12))
    """

    start: int
    stop: int
    number: int
    """Number of the turn in its episode, in the order of sampling."""
    turn: Turn


@dataclass(frozen=True, slots=True)
class TrainedRow:
    """One row, and its spans of tokens that train.

    Example: TrainedRow("response 0 to 'p'", turns=(first, second), spans=(Span(2, 4, 0, first), Span(7, 9, 1, second)))
    """

    name: str
    """The response that the row is of, for error messages."""
    turns: tuple[Turn, ...]
    spans: tuple[Span, ...]

    @property
    def pieces(self) -> list[tuple[Sequence[int], Span | None]]:
        """The row's ids in order: pieces of observed or sampled tokens, with the span if they train. No copies."""
        spans = iter(self.spans)
        return [
            piece
            for turn in self.turns
            for piece in ((turn.observed, None), (turn.sampled, next(spans) if turn.trains else None))
        ]

    @property
    def ids(self) -> tuple[int, ...]:
        """All ids of the row."""
        return tuple(i for ids, _ in self.pieces for i in ids)

    @property
    def num_tokens(self) -> int:
        """The length of the row."""
        return sum(len(turn.observed) + len(turn.sampled) for turn in self.turns)

    @property
    def policy_version(self) -> int:
        """The version of the weights that drew the oldest token that trains."""
        return min(span.turn.policy_version for span in self.spans)


def trained_rows(rollout: Rollout) -> list[TrainedRow]:
    """Return the rows of a rollout with their trained spans; a single response gives one row and copies no ids.

    Raises: DataError for log-probs or records of sampling that do not fit their tokens; EngineError for an episode
    whose rows cannot be what the engine computed, such as a turn that trains in two rows.
    """
    name = f"response {rollout.sample} to {rollout.prompt_id!r}"
    if rollout.episode is not None:
        _check_episode(name, rollout)
    out = []
    number = 0
    for turns in rows(rollout):
        spans = []
        stop = 0
        for turn in turns:
            start = stop + len(turn.observed)
            stop = start + len(turn.sampled)
            if turn.trains:
                turn_name = name if rollout.episode is None else f"turn {number} of {name}"
                _check_logprobs(turn_name, turn)
                if turn.kept is not None:
                    _check_kept(turn_name, turn.kept, len(turn.sampled))
                spans.append(Span(start, stop, number if turn.number is None else turn.number, turn))
                number += 1
        row = TrainedRow(name, turns, tuple(spans))
        _check_routing(row)
        out.append(row)
    return out


def is_truncated(rollout: Rollout) -> bool:
    """True if a length limit cut the last turn, or left no room for another one."""
    cut = rollout.was_cut
    return cut if rollout.episode is None else cut or rollout.episode.ending in ("tokens", "context")


def require_single(rollouts: Iterable[Rollout], what: str) -> None:
    """Raise DataError naming `what` if one of the rollouts is an episode, which it cannot read."""
    for r in rollouts:
        if r.episode is not None:
            raise DataError(
                f"{what} reads single responses, and response {r.sample} to {r.prompt_id!r} is an episode of "
                f"{len(r.turns)} turns; use prompts without an environment, or train on rewards with an algorithm of RL"
            )


def _check_episode(name: str, rollout: Rollout) -> None:
    """Raise EngineError where the rows break the rule that each sampled token trains in exactly one of them."""
    episode = rollout.episode
    assert episode is not None
    if not episode.rows or not all(episode.rows):
        raise EngineError(f"{name} is an episode with a row of no turns; each row has one at least")
    first = episode.rows[0][0]
    if (first.observed, first.sampled) != (rollout.prompt_ids, rollout.response_ids):
        raise EngineError(f"the ids of {name} are not those of its episode's first turn; they describe the same tokens")
    trained: set[int] = set()  # identities of turns, because equal ones may be sampled by chance
    sampled: set[tuple[int, ...]] = set()
    for number, turns in enumerate(episode.rows):
        for turn in turns:
            if not turn.observed or not turn.sampled:
                what = "observes" if not turn.observed else "samples"
                raise EngineError(f"row {number} of {name} has a turn that {what} nothing; every turn does both")
            if turn.trains and id(turn) in trained:
                raise EngineError(
                    f"row {number} of {name} trains a turn of an earlier row again; set trains=False in it"
                )
            if not turn.trains and tuple(turn.sampled) not in sampled:
                raise EngineError(
                    f"row {number} of {name} shares a turn that no earlier row has; its tokens never train"
                )
            if turn.trains:
                trained.add(id(turn))
        if not turns[-1].trains:
            raise EngineError(
                f"row {number} of {name} ends with a turn that does not train; a row ends with its own turn"
            )
        sampled.update(tuple(turn.sampled) for turn in turns if turn.trains)


def num_shared(first: Sequence[object], second: Sequence[object]) -> int:
    """Return the length of the common beginning of both, in tokens or characters."""
    return next(
        (n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def _check_kept(turn_name: str, kept: KeptTokens, num: int) -> None:
    total = sum(kept.sizes)
    if len(kept.sizes) != num or total * 4 != len(kept.ids):
        raise DataError(
            f"{turn_name} has {num} tokens and kept sets "
            f"of {len(kept.sizes)}, which hold {len(kept.ids) // 4} of {total} ids"
        )


def _check_logprobs(turn_name: str, turn: Turn) -> None:
    logprobs = turn.logprobs
    if len(logprobs) != len(turn.sampled):
        raise DataError(f"{turn_name} has {len(turn.sampled)} tokens and {len(logprobs)} log-probs")
    # The sum is NaN or infinite if one of them is, and is faster to compute than a test of each.
    if not math.isfinite(sum(logprobs)) or max(logprobs, default=0.0) > ROUNDING:
        odd = next(x for x in logprobs if not (math.isfinite(x) and x <= ROUNDING))
        raise EngineError(f"{turn_name} has a log-prob of {odd}; the log-prob of a sampled token is finite and <= 0")


def _check_routing(row: TrainedRow) -> None:
    """Raise EngineError unless the routing is that of all tokens of the row but the last, or there is none."""
    if all(turn.routing is None for turn in row.turns):
        return
    for number, turn in enumerate(row.turns):
        # All tokens of a turn have experts but its last one, which gets them when the next turn is computed.
        num_routed = len(turn.observed) + len(turn.sampled) - (number == 0)
        routing = turn.routing
        if routing is None or len(routing.experts) != num_routed * routing.layers * routing.top_k * 2:
            size = "none" if routing is None else f"{len(routing.experts)} bytes"
            raise EngineError(
                f"turn {number} of a row of {row.name} brings {num_routed} tokens, and its routing is {size}"
            )
