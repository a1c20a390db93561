"""Responses of several ranks: held in compact form where they were sampled, told of everywhere else.

A rank that decides about a response (its reward, its length, whether it is kept) needs no token of it. `told` is what
every rank gets of it; `compacted` is the form in which the rank that sampled it holds it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from verizero.pipeline.compact import Elsewhere, integers, reals, totals
from verizero.pipeline.types import Episode, Group, KeptTokens, Rollout, ScoredRollout, Turn


def compacted(rollouts: Iterable[Rollout]) -> list[Rollout]:
    """Return the rollouts with tokens, log-probs and sizes of kept sets in compact form, and no number changed.

    Objects that rollouts share, such as the prompt's tokens or a turn, are shared afterwards too.
    """
    rollouts = list(rollouts)  # keeps the objects alive whose identities are keys
    made: dict[int, Any] = {}

    def once(make: Any, value: Any) -> Any:
        if id(value) not in made:
            made[id(value)] = make(value)
        return made[id(value)]

    def kept(sets: KeptTokens) -> KeptTokens:
        return replace(sets, sizes=integers(sets.sizes))

    def turn(t: Turn) -> Turn:
        return replace(
            t,
            observed=once(integers, t.observed),
            sampled=once(integers, t.sampled),
            logprobs=once(reals, t.logprobs),
            kept=None if t.kept is None else once(kept, t.kept),
        )

    def episode(e: Episode) -> Episode:
        return replace(e, rows=tuple(tuple(once(turn, t) for t in row) for row in e.rows))

    return [
        replace(
            r,
            prompt_ids=once(integers, r.prompt_ids),
            response_ids=once(integers, r.response_ids),
            logprobs=once(reals, r.logprobs),
            kept=None if r.kept is None else once(kept, r.kept),
            episode=None if r.episode is None else episode(r.episode),
        )
        for r in rollouts
    ]


def told(rollout: Rollout, rank: int) -> Rollout:
    """Return what the other ranks get of a response that `rank` holds.

    It has the prompt's tokens, counts in place of all other sequences, and no text; of an episode the turns with their
    rewards and states, its counts, its ending, and which messages called a tool.
    """
    if rollout.held_by is not None:
        return rollout
    episode = rollout.episode
    return replace(
        rollout,
        response_ids=Elsewhere(len(rollout.response_ids)),
        logprobs=Elsewhere(len(rollout.logprobs)),
        text="",
        kept=_told_kept(rollout.kept),
        routing=None,
        episode=None if episode is None else _told_episode(episode),
        held_by=rank,
    )


def told_group(group: Group, rank: int) -> Group:
    """Return the group with every response as `told`, and no text that a verifier found in one."""
    return replace(group, members=tuple(told_member(m, rank) for m in group.members))


def told_member(member: ScoredRollout, rank: int) -> ScoredRollout:
    """Return the graded response as `told`, without the text that the verifier found in it."""
    return replace(member, rollout=told(member.rollout, rank), verdict=replace(member.verdict, extracted=None))


def _told_kept(kept: KeptTokens | None) -> KeptTokens | None:
    if kept is None:
        return None
    return replace(kept, sizes=Elsewhere(len(kept.sizes), *totals(kept.sizes)), ids=b"")


def _told_turn(turn: Turn) -> Turn:
    return replace(
        turn,
        observed=Elsewhere(len(turn.observed)),
        sampled=Elsewhere(len(turn.sampled)),
        logprobs=Elsewhere(len(turn.logprobs)),
        kept=_told_kept(turn.kept),
        routing=None,
    )


def _told_episode(episode: Episode) -> Episode:
    # A call without its arguments: that there was one is counted.
    calls = [
        replace(m, content="", calls=tuple(replace(c, arguments={}) for c in m.calls), thinking=None, unread=None)
        for m in episode.messages
        if m.calls
    ]
    outcome = None if episode.outcome is None else replace(episode.outcome, extracted=None)
    return replace(
        episode,
        rows=tuple(tuple(map(_told_turn, row)) for row in episode.rows),
        messages=tuple(calls),
        answer=None,
        outcome=outcome,
    )
