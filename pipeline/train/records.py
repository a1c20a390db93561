"""Records of sampling (kept sets, routes of experts): hundreds of bytes a token, so all ranks do not get them all.

Every rank has the tokens of all responses. Their records stay with the rank that sampled them, until it is known which
rank trains on a row: then each rank gets those of its own rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from verizero.pipeline.rows import rows
from verizero.pipeline.train.collate import Place, owners, placed_rows
from verizero.pipeline.train.ranks import Ranks
from verizero.pipeline.types import Group, KeptTokens, PromptOf, Rollout, Turn


def without_records(group: Group, rank: int) -> Group:
    """Return the group as the ranks other than `rank` get it, which sampled it; of kept sets they get the sizes."""
    return replace(group, members=tuple(replace(m, rollout=_without_records(m.rollout, rank)) for m in group.members))


def with_own_records(
    ranks: Ranks,
    groups: Sequence[Group],
    lengths: Sequence[int],
    steps: Iterable[Sequence[int]],
    prompts: Sequence[PromptOf] | None = None,
) -> list[Group]:
    """Return the groups in which this rank has the records of all rows that it trains on. Every rank must call this.

    `lengths`: of all rows (`row_lengths`), padded as `deal` gets them, and `prompts` as it gets them; `steps`: the rows
    of everything that is dealt over ranks.
    """
    place_of = [place for place, _ in placed_rows(groups)]
    takers: list[set[Place]] = [set() for _ in range(ranks.data.size)]
    for step in steps:
        shared = None if prompts is None else [prompts[i] for i in step]
        for taker, own in zip(takers, owners([lengths[i] for i in step], ranks.data.size, shared), strict=True):
            taker.update(place_of[step[k]] for k in own)
    # Neighbours hold each sequence together, so they train on the same rows.
    together = ranks.size // ranks.data.size
    return moved(ranks, groups, [takers[rank // together] for rank in range(ranks.size)])


def with_records_on_first(ranks: Ranks, groups: Sequence[Group]) -> list[Group]:
    """Return the groups, on rank 0 with all records. Every rank must call this."""
    everything = {(g, m) for g, group in enumerate(groups) for m in range(len(group.members))}
    return moved(ranks, groups, [everything, *(set[Place]() for _ in range(ranks.size - 1))])


def moved(ranks: Ranks, groups: Sequence[Group], wanted: Sequence[AbstractSet[Place]]) -> list[Group]:
    """Return the groups in which this rank has the records that it wants, and those that it had.

    `wanted`: the places that each rank wants, by rank; all ranks must call this with the same ones.
    """
    rollouts = {(g, m): y.rollout for g, x in enumerate(groups) for m, y in enumerate(x.members)}
    recorded = {place: r for place, r in rollouts.items() if has_records(r)}
    if ranks.size == 1 or not recorded:  # of the same responses on all ranks
        return list(groups)
    own = {place: r for place, r in recorded.items() if r.recorded_by is None}
    arrived: dict[Place, Rollout] = {}
    for part in ranks.exchange([{p: r for p, r in own.items() if p in wanted[rank]} for rank in range(ranks.size)]):
        arrived |= part
    arrived |= own
    return [
        replace(x, members=tuple(replace(y, rollout=arrived.get((g, m), y.rollout)) for m, y in enumerate(x.members)))
        for g, x in enumerate(groups)
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
        episode = replace(episode, rows=tuple(tuple(map(_bare, row)) for row in episode.rows))
    return replace(rollout, kept=_sizes(rollout.kept), routing=None, episode=episode, recorded_by=rank)


def _bare(turn: Turn) -> Turn:
    return replace(turn, kept=_sizes(turn.kept), routing=None)


def _sizes(kept: KeptTokens | None) -> KeptTokens | None:
    return None if kept is None else replace(kept, ids=b"")
