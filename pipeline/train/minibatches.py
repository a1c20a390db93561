"""The rows of each optimiser step of an update: whole groups, reshuffled for each epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from verizero.pipeline.rl.parts import Updates
from verizero.pipeline.seeds import stream


def minibatches(updates: Updates, group_of: Sequence[int], seed: int, step: int) -> Iterator[list[int]]:
    """Yield the rows of each optimiser step. `group_of`: the group of each row, in the order of the rows."""
    groups: dict[int, list[int]] = {}
    for row, group in enumerate(group_of):
        groups.setdefault(group, []).append(row)
    order = list(groups)
    num = min(updates.num_minibatches, len(order))
    for epoch in range(updates.num_epochs):
        if num > 1:
            stream(seed, "minibatches", step, epoch).shuffle(order)
        for i in range(num):
            # By strides: the minibatches differ by one group at most.
            yield [row for group in order[i::num] for row in groups[group]]
