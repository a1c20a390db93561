"""Divide a batch into minibatches of whole groups, reshuffled for each epoch; each is one optimiser step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from verizero.pipeline.rl.parts import Updates
from verizero.pipeline.seeds import stream


def minibatches(updates: Updates, group_of: Sequence[int], seed: int, step: int) -> Iterator[list[int]]:
    """Yield the rows of each optimiser step, as indices. `group_of`: the group of each row."""
    groups: dict[int, list[int]] = {}
    for row, group in enumerate(group_of):
        groups.setdefault(group, []).append(row)
    order = list(groups)
    num = min(updates.num_minibatches, len(order))
    for epoch in range(updates.num_epochs):
        if num > 1:
            stream(seed, "minibatches", step, epoch).shuffle(order)
        for i in range(num):
            # By strides, so that minibatches differ by one group at most.
            yield [row for group in order[i::num] for row in groups[group]]
