"""Send records of sampling (kept sets, routes of experts) only to the ranks that train on them.

Every rank has the tokens of all responses. The records have hundreds of bytes a token, so they stay with the rank that
sampled a response until the rows are divided among ranks; then each rank gets the records of its own rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from verizero.pipeline.rows import rows
from verizero.pipeline.train.collate import MemberIndex, members_of_rows, rows_of_ranks
from verizero.pipeline.train.ranks import Ranks
from verizero.pipeline.types import Group, KeptTokens, Path, Rollout, Turn


def without_records(group: Group, rank: int) -> Group:
    """Strip the records from a group that `rank` sampled, to send it to the other ranks; sizes of kept sets stay."""
    return replace(group, members=tuple(replace(m, rollout=_without_records(m.rollout, rank)) for m in group.members))


def with_own_records(
    ranks: Ranks,
    groups: Sequence[Group],
    lengths: Sequence[int],
    steps: Iterable[Sequence[int]],
    paths: Sequence[Path] | None = None,
) -> list[Group]:
    """Return the groups, on each rank with the records of all rows that it trains on. Every rank must call this.

    `lengths`, `paths`: of all rows, as `rank_micro_batches` gets them. `steps`: the rows of each optimiser step, and
    of each forward over the whole batch.
    """
    member_of_row = [member for member, _ in members_of_rows(groups)]
    size = ranks.row_ranks.size
    members_of_ranks: list[set[MemberIndex]] = [set() for _ in range(size)]
    for step in steps:
        paths_of_step = None if paths is None else [paths[i] for i in step]
        divided = rows_of_ranks([lengths[i] for i in step], size, paths_of_step)
        for members, rows_of_rank in zip(members_of_ranks, divided, strict=True):
            members.update(member_of_row[step[k]] for k in rows_of_rank)
    # Ranks that share sequences are neighbours, and train on the same rows.
    num_sharing = ranks.size // size
    return exchanged_records(ranks, groups, [members_of_ranks[rank // num_sharing] for rank in range(ranks.size)])


def with_records_on_first(ranks: Ranks, groups: Sequence[Group]) -> list[Group]:
    """Return the groups, on rank 0 with all records. Every rank must call this."""
    all_members = {(g, m) for g, group in enumerate(groups) for m in range(len(group.members))}
    return exchanged_records(ranks, groups, [all_members, *(set[MemberIndex]() for _ in range(ranks.size - 1))])


def exchanged_records(
    ranks: Ranks, groups: Sequence[Group], members_of_ranks: Sequence[AbstractSet[MemberIndex]]
) -> list[Group]:
    """Return the groups, on each rank with the records of its members, besides those that it had.

    `members_of_ranks`: the members whose records each rank gets; all ranks must call this with the same ones.
    """
    rollouts = {(g, m): member.rollout for g, group in enumerate(groups) for m, member in enumerate(group.members)}
    if ranks.size == 1 or not any(map(has_records, rollouts.values())):  # the same answer on all ranks
        return list(groups)
    complete = {index: r for index, r in rollouts.items() if has_records(r) and r.recorded_by is None}
    sent = [{i: r for i, r in complete.items() if i in members_of_ranks[rank]} for rank in range(ranks.size)]
    received: dict[MemberIndex, Rollout] = {}
    for of_rank in ranks.exchange(sent):
        received |= of_rank
    rollouts |= received | complete
    return [
        replace(group, members=tuple(replace(x, rollout=rollouts[g, m]) for m, x in enumerate(group.members)))
        for g, group in enumerate(groups)
    ]


def has_records(rollout: Rollout) -> bool:
    """True if the sampling of the response was recorded, here or on another rank."""
    return rollout.recorded_by is not None or any(
        t.kept is not None or t.routing is not None for row in rows(rollout) for t in row
    )


def _without_records(rollout: Rollout, rank: int) -> Rollout:
    if not has_records(rollout) or rollout.recorded_by is not None:
        return rollout
    episode = rollout.episode
    if episode is not None:
        episode = replace(episode, rows=tuple(tuple(map(_turn_without_records, row)) for row in episode.rows))
    return replace(rollout, kept=_only_sizes(rollout.kept), routing=None, episode=episode, recorded_by=rank)


def _turn_without_records(turn: Turn) -> Turn:
    return replace(turn, kept=_only_sizes(turn.kept), routing=None)


def _only_sizes(kept: KeptTokens | None) -> KeptTokens | None:
    return None if kept is None else replace(kept, ids=b"")
