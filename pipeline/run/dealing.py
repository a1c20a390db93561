"""One step's prompts dealt out over the ranks, and what came of them put together again on all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.scoring.score import Tally
from pipeline.train.ranks import Ranks
from pipeline.types import Group, Prompt


@dataclass(frozen=True, slots=True)
class Share:
    """The prompts of this rank, and the place of each among all."""

    prompts: list[Prompt]
    places: list[int]


def share_of(ranks: Ranks, prompts: Sequence[Prompt]) -> Share:
    """This rank's prompts, in their order: all of them where there is one rank.

    A prompt that comes twice goes to one rank both times: what it draws the second time depends on the first.
    """
    owner: dict[str, int] = {}
    for p in prompts:
        owner.setdefault(p.id, len(owner) % ranks.size)
    places = [i for i, p in enumerate(prompts) if owner[p.id] == ranks.rank]
    return Share([prompts[i] for i in places], places)


def together(
    ranks: Ranks, share: Share, columns: Sequence[Sequence[Group]], tally: Tally
) -> tuple[list[list[Group]], Tally]:
    """Each column of groups (one per prompt of the share) as one process would have it, and the sum of all tallies."""
    if ranks.size == 1:
        return [list(c) for c in columns], tally
    found = ranks.gather((share.places, [list(c) for c in columns], tally))
    whole: list[list[Group]] = []
    for i in range(len(columns)):
        placed = {place: group for places, theirs, _ in found for place, group in zip(places, theirs[i], strict=True)}
        whole.append([placed[place] for place in range(len(placed))])
    return whole, summed([theirs for _, _, theirs in found])


def summed(tallies: Sequence[Tally]) -> Tally:
    """What graders of all ranks did; they were at work at the same time, so the longest counts."""
    statuses: Counter[str] = Counter()
    for t in tallies:
        statuses.update(t.statuses)
    return Tally(
        dict(statuses), sum(t.retried for t in tallies), sum(t.seconds for t in tallies), max(t.busy_s for t in tallies)
    )
