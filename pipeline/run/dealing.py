"""Dealing the prompts of one step to the ranks, and gathering their groups again on all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from verizero.pipeline.scoring.score import GradingTally
from verizero.pipeline.train.ranks import Ranks
from verizero.pipeline.types import Group, Prompt


@dataclass(frozen=True, slots=True)
class RankPrompts:
    """The prompts of this rank, and the index of each among all prompts."""

    prompts: list[Prompt]
    indices: list[int]


def share_of(ranks: Ranks, prompts: Sequence[Prompt]) -> RankPrompts:
    """Return this rank's prompts in their order: all of them where there is one rank.

    A prompt that occurs twice goes to one rank both times: its second random numbers depend on the first draw.
    """
    owner: dict[str, int] = {}
    for p in prompts:
        # Dealt in turn by first occurrence, so every rank computes the same owners without a message.
        owner.setdefault(p.id, len(owner) % ranks.size)
    indices = [i for i, p in enumerate(prompts) if owner[p.id] == ranks.rank]
    return RankPrompts([prompts[i] for i in indices], indices)


def gather_groups(
    ranks: Ranks, share: RankPrompts, columns: Sequence[Sequence[Group]], tally: GradingTally
) -> tuple[list[list[Group]], GradingTally]:
    """Gather the groups of all ranks in the order of the step's prompts, and add up the ranks' tallies.

    `columns`: lists of this rank's groups, each with one group for each prompt of its share, e.g. of samples and of
    greedy responses.
    """
    if ranks.size == 1:
        return [list(c) for c in columns], tally
    gathered = ranks.gather((share.indices, columns, tally))
    whole: list[list[Group]] = []
    for i in range(len(columns)):
        # Indices into the whole step: with them the order is that of one process.
        by_index = {
            index: group for indices, theirs, _ in gathered for index, group in zip(indices, theirs[i], strict=True)
        }
        whole.append([by_index[index] for index in range(len(by_index))])
    return whole, sum_of_tallies([tally for _, _, tally in gathered])


def sum_of_tallies(tallies: Sequence[GradingTally]) -> GradingTally:
    """Return the sum of the ranks' tallies. Ranks grade at the same time, so the busiest one's seconds count."""
    statuses: Counter[str] = Counter()
    for t in tallies:
        statuses.update(t.statuses)
    return GradingTally(
        dict(statuses), sum(t.retried for t in tallies), sum(t.seconds for t in tallies), max(t.busy_s for t in tallies)
    )
