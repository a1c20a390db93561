"""The device's side of a decode: tokens, log-probs and ends of the rows in all slots.

A step needs nothing from the host and makes no tensor that outlives it: the tensors here keep their addresses.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.rollout.sampling import Draw, Kept, uniforms


class Written:
    """Tokens and log-probs of the rows in the slots; `draw` adds a token to each row that has not ended."""

    def __init__(self, slots: int, sampling: Sampling, ends: Tensor) -> None:
        device, steps = ends.device, sampling.max_tokens
        self.sampling, self.ends = sampling, ends
        # The last column takes what is written to rows that have ended, which are computed until they are taken out.
        self.tokens = torch.zeros(slots, steps + 1, dtype=torch.int64, device=device)
        self.logprobs = torch.zeros(slots, steps + 1, device=device)
        self.numbers = torch.zeros(slots, steps + 1, dtype=torch.float64, device=device)
        """The uniform number of each token, drawn ahead: it depends on the row's seed alone."""
        self.last = torch.zeros(slots, dtype=torch.int64, device=device)
        self.count = torch.zeros(slots, dtype=torch.int64, device=device)
        self.done = torch.ones(slots, dtype=torch.bool, device=device)
        self.owner = torch.zeros(slots, dtype=torch.int64, device=device)
        """The response in each slot, by its number among all of the call."""

    def begin(self, slots: Tensor, seeds: list[int], owners: Tensor) -> None:
        """Take new rows into slots."""
        numbers = uniforms(seeds, self.sampling.max_tokens, self.ends.device)
        self.numbers[:, :-1].index_copy_(0, slots, numbers.t())
        self.owner.index_copy_(0, slots, owners)
        self.count.index_fill_(0, slots, 0)
        self.done.index_fill_(0, slots, False)

    def draw(self, logits: Tensor, rows: Tensor, pick: Draw) -> Kept | None:
        """Draw a token of each of the slots `rows` from logits [n, V]; return the sets drawn from, if `pick` does."""
        at = self.count.index_select(0, rows)
        ended = self.done.index_select(0, rows)
        tokens, logprobs, *kept = pick(logits, self.numbers[rows, at], self.sampling)
        self.tokens[rows, at] = tokens
        self.logprobs[rows, at] = logprobs
        self.last.index_copy_(0, rows, tokens)
        at = at + ~ended
        self.count.index_copy_(0, rows, at)
        ended |= torch.isin(tokens, self.ends) | (at >= self.sampling.max_tokens)
        self.done.index_copy_(0, rows, ended)
        return kept[0] if kept else None

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Move rows to other slots; those that they leave have ended."""
        if not sources:
            return
        a, b = (torch.tensor(x, device=self.ends.device) for x in (sources, targets))
        for x in (self.tokens, self.logprobs, self.numbers, self.last, self.count, self.done, self.owner):
            x.index_copy_(0, b, x.index_select(0, a))
        self.done.index_fill_(0, a, True)

    def read(self, slots: Sequence[int], most: int) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        """Return tokens and log-probs of rows that have ended, of at most `most` tokens each, by one move."""
        rows = torch.tensor(slots, device=self.ends.device)
        # float64 holds both exactly
        parts = (self.count[:, None], self.tokens[:, :most], self.logprobs[:, :most])
        table = torch.cat([x.index_select(0, rows).double() for x in parts], 1).tolist()
        counts = [int(row[0]) for row in table]
        return [
            (tuple(map(int, row[1 : 1 + n])), tuple(row[1 + most : 1 + most + n]))
            for row, n in zip(table, counts, strict=True)
        ]
