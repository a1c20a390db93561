"""Responses to the ranks that train on them: which those are, and the message that brings them there.

Every rank knows the lengths of all responses, so all compute the same owners of the rows without a message. Then one
exchange brings each response from the rank that sampled it to those that train on it, and to no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from verizero.pipeline.held import told_group, told_member
from verizero.pipeline.train.collate import owners
from verizero.pipeline.train.ranks import Ranks
from verizero.pipeline.types import Group, PromptOf, Rollout, ScoredRollout

Place = tuple[int, int]
"""A response among groups: number of the group, number of the member in it."""


def with_own(
    ranks: Ranks,
    groups: Sequence[Group],
    lengths: Sequence[int],
    steps: Iterable[Sequence[int]],
    prompts: Sequence[PromptOf] | None = None,
) -> list[Group]:
    """Return the groups in which this rank has all of the responses that it trains on, and is told of the others.

    `lengths`: of all rows (`row_lengths`), padded as `deal` gets them, and `prompts` as it gets them; `steps`: the rows
    of everything that is dealt over ranks. An episode of several rows comes whole to each rank that trains on one of
    them. Every rank must call this with equal arguments, but for what the groups hold. With one rank the groups stay as
    they are.
    """
    if ranks.size == 1:
        return list(groups)
    place_of = [place for place, _ in _sized(groups)]
    takers: list[set[Place]] = [set() for _ in range(ranks.data.size)]
    for step in steps:
        shared = None if prompts is None else [prompts[i] for i in step]
        for taker, own in zip(takers, owners([lengths[i] for i in step], ranks.data.size, shared), strict=True):
            taker.update(place_of[step[k]] for k in own)
    # Neighbours hold each sequence together, so they train on the same rows.
    together = ranks.size // ranks.data.size
    whole = moved(ranks, groups, [takers[rank // together] for rank in range(ranks.size)])
    own_places = takers[ranks.rank // together]

    def seen(place: Place, member: ScoredRollout) -> ScoredRollout:
        return member if place in own_places else told_member(member, ranks.rank)

    return [
        replace(group, members=tuple(seen((g, m), member) for m, member in enumerate(group.members)))
        for g, group in enumerate(whole)
    ]


def row_lengths(groups: Sequence[Group]) -> tuple[list[int], list[int]]:
    """Return the length of each row that `collate` makes of the groups, and the number of its group."""
    sized = _sized(groups)
    return [length for _, length in sized], [group for (group, _), _ in sized]


def _sized(groups: Sequence[Group]) -> list[tuple[Place, int]]:
    return [
        ((g, m), length)
        for g, group in enumerate(groups)
        for m, member in enumerate(group.members)
        if member.reward is not None
        for length in _row_lengths(member.rollout)
    ]


def _row_lengths(rollout: Rollout) -> list[int]:
    if rollout.episode is None:
        return [len(rollout.prompt_ids) + len(rollout.response_ids)]
    return [sum(len(turn.observed) + len(turn.sampled) for turn in row) for row in rollout.episode.rows]


def moved(ranks: Ranks, groups: Sequence[Group], wanted: Sequence[AbstractSet[Place]]) -> list[Group]:
    """Return the groups in which this rank has all of the responses that it wants, next to those that it held.

    `wanted`: the places that each rank wants, by rank; all ranks must call this with the same ones.
    """
    if ranks.size == 1:
        return list(groups)

    def sent_to(rank: int) -> dict[Place, ScoredRollout]:
        if rank == ranks.rank:
            return {}
        members = ((place, groups[place[0]].members[place[1]]) for place in sorted(wanted[rank]))
        return {place: member for place, member in members if member.rollout.held_by is None}

    arrived: dict[Place, ScoredRollout] = {}
    for part in ranks.exchange([sent_to(rank) for rank in range(ranks.size)]):
        arrived |= part

    def whole(place: Place, member: ScoredRollout) -> ScoredRollout:
        return member if member.rollout.held_by is None else arrived.get(place, member)

    return [
        replace(group, members=tuple(whole((g, m), member) for m, member in enumerate(group.members)))
        for g, group in enumerate(groups)
    ]


def whole_on_first(ranks: Ranks, groups: Sequence[Group]) -> list[Group]:
    """Return the groups, whole on rank 0, with what the others hold. Every rank must call this."""
    everything = {(g, m) for g, group in enumerate(groups) for m in range(len(group.members))}
    return moved(ranks, groups, [everything, *(set[Place]() for _ in range(ranks.size - 1))])


def held_once(ranks: Ranks, groups: Sequence[Group]) -> list[Group]:
    """Return the groups, each of them whole on one rank of those that hold it, as after a checkpoint all do."""
    if ranks.size == 1 or not groups:
        return list(groups)
    holds = ranks.gather([all(m.rollout.held_by is None for m in group.members) for group in groups])
    out = []
    for g, group in enumerate(groups):
        holders = [rank for rank in range(ranks.size) if holds[rank][g]]
        holder = holders[g % len(holders)]  # in turn, where several have it
        out.append(group if holder == ranks.rank else told_group(group, holder))
    return out
