"""The record that the embedded engine keeps of a decode: sets that tokens were drawn from, and experts used."""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.rollout.sampling import Kept
from pipeline.types import KeptTokens, Routing


class Recorder:
    """Collects the sets and experts of each step, on the CPU; rows end at different steps."""

    def __init__(self, rows: int, steps: int) -> None:
        self.rows = rows
        self.sizes = torch.zeros(rows, steps, dtype=torch.int64)
        self.bounded = torch.zeros(rows, dtype=torch.int64)
        self._owners: list[Tensor] = []
        self._ids: list[Tensor] = []
        self._routing: list[tuple[Tensor, Tensor]] = []
        self._width = 0

    def keep(self, step: int, kept: Kept, rows: Tensor, running: Tensor) -> None:
        """Add the sets of one step: row i of `kept` is the row `rows[i]`, and counts where `running[i]`."""
        possible, owners = kept.possible[running].cpu(), rows[running].cpu()
        sizes = possible.sum(1)
        cut = sizes < possible.shape[1]  # a whole vocabulary is recorded as a set of size 0
        self.sizes[owners[cut], step] = sizes[cut]
        # Owners are distinct, so no addition is lost.
        self.bounded[owners] += kept.bounded[running].cpu()
        self._owners.append(owners[cut].repeat_interleave(sizes[cut]))
        self._ids.append(possible[cut].nonzero()[:, 1].to(torch.int32))

    def route(self, routing: Tensor, rows: Tensor) -> None:
        """Add the experts [n, tokens, layers, top_k] of the next tokens of rows `rows` [n]; first those of prompts."""
        self._routing.append((routing.cpu(), rows.cpu()))

    def kept(self, lengths: list[int]) -> list[KeptTokens]:
        """Return the sets of each row; row i has lengths[i] tokens."""
        # Steps were added one after another: a stable sort by row keeps each row's sets in the order of its tokens.
        owners = torch.cat(self._owners)
        ids = torch.cat(self._ids)[owners.argsort(stable=True)]
        pieces = ids.split_with_sizes(torch.bincount(owners, minlength=self.rows).tolist())
        return [
            KeptTokens(tuple(self.sizes[i, :n].tolist()), pieces[i].numpy().tobytes(), int(self.bounded[i]))
            for i, n in enumerate(lengths)
        ]

    def routes(self, prompt_lengths: list[int], lengths: list[int]) -> list[Routing]:
        """Return the experts of each row's prompt and response; the last token, never computed, has none."""
        # The prefill comes first, with all rows in order; each later entry is one token of the rows still running.
        first, _ = self._routing[0]
        width, layers, top_k = first.shape[1:]
        table = torch.full((self.rows, width + len(self._routing) - 1, layers, top_k), -1, dtype=torch.int16)
        table[:, :width] = first
        for step, (routing, rows) in enumerate(self._routing[1:]):
            table[rows, width + step] = routing[:, 0]
        out = []
        for row, (prompt, response) in enumerate(zip(prompt_lengths, lengths, strict=True)):
            used = table[row, width - prompt : width + response - 1]  # prompts are padded on the left
            out.append(Routing(layers, top_k, used.contiguous().numpy().tobytes()))
        return out
