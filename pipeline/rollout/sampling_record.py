"""The record that the embedded engine keeps of a decode: sets that tokens were drawn from, and experts used."""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.rollout.sampling import Kept
from pipeline.types import KeptTokens, Routing

MOVED_AT_ONCE = 1 << 20
"""Records are moved to the CPU in pieces of about this many numbers: each move waits for the device."""


class Recorder:
    """Collects the sets and experts of each step on the device, and moves them to the CPU now and then."""

    def __init__(self, rows: int, steps: int, device: torch.device) -> None:
        self.rows = rows
        self.sizes = torch.zeros(rows, steps, dtype=torch.int64, device=device)
        self.bounded = torch.zeros(rows, dtype=torch.int64, device=device)
        self._ids = Moved()
        self._routing = Moved()

    def keep(self, step: int, kept: Kept, rows: Tensor, running: Tensor) -> None:
        """Add the sets of one step: row i of `kept` is the row `rows[i]`, and counts where `running[i]`."""
        sizes = kept.possible.sum(1)
        # A whole vocabulary is recorded as a set of size 0.
        recorded = running & (sizes < kept.possible.shape[1])
        # Rows are distinct, so no size and no addition is lost.
        self.sizes[rows, step] = sizes * recorded
        self.bounded[rows] += kept.bounded & running
        # Only the tokens kept are moved: the table of the vocabulary stays where it is.
        places, ids = (kept.possible & recorded[:, None]).nonzero().unbind(1)
        self._ids.add(ids.to(torch.int32), rows.index_select(0, places))

    def route(self, routing: Tensor, rows: Tensor) -> None:
        """Add the experts [n, tokens, layers, top_k] of the next tokens of rows `rows` [n]; first those of prompts."""
        self._routing.add(routing, rows)

    def kept(self, lengths: list[int]) -> list[KeptTokens]:
        """Return the sets of each row; row i has lengths[i] tokens."""
        # Steps were added one after another: a stable sort by row keeps each row's sets in the order of its tokens.
        moved = self._ids.on_cpu()
        owners = torch.cat([rows for _, rows in moved])
        ids = torch.cat([ids for ids, _ in moved])[owners.argsort(stable=True)]
        pieces = ids.split_with_sizes(torch.bincount(owners, minlength=self.rows).tolist())
        sizes, bounded = self.sizes.tolist(), self.bounded.tolist()
        return [KeptTokens(tuple(sizes[i][:n]), pieces[i].numpy().tobytes(), bounded[i]) for i, n in enumerate(lengths)]

    def routes(self, prompt_lengths: list[int], lengths: list[int]) -> list[Routing]:
        """Return the experts of each row's prompt and response; the last token, never computed, has none."""
        # The prefill comes first, with all rows in order; each later entry is one token of the rows still running.
        moved = self._routing.on_cpu()
        first, _ = moved[0]
        width, layers, top_k = first.shape[1:]
        table = torch.full((self.rows, width + len(moved) - 1, layers, top_k), -1, dtype=torch.int16)
        table[:, :width] = first
        for step, (routing, rows) in enumerate(moved[1:]):
            table[rows, width + step] = routing[:, 0]
        out = []
        for row, (prompt, response) in enumerate(zip(prompt_lengths, lengths, strict=True)):
            used = table[row, width - prompt : width + response - 1]  # prompts are padded on the left
            out.append(Routing(layers, top_k, used.contiguous().numpy().tobytes()))
        return out


class Moved:
    """Pairs of tensors of a device, moved to the CPU some at a time."""

    def __init__(self) -> None:
        self._there: list[tuple[Tensor, Tensor]] = []
        self._here: list[tuple[Tensor, Tensor]] = []
        self._waiting = 0

    def add(self, values: Tensor, rows: Tensor) -> None:
        """Take a pair; move all that wait once they are many."""
        self._there.append((values, rows))
        self._waiting += values.numel() + rows.numel()
        if self._waiting >= MOVED_AT_ONCE:
            self.on_cpu()

    def on_cpu(self) -> list[tuple[Tensor, Tensor]]:
        """Move the pairs that wait; return all pairs in the order in which they came."""
        if self._there:
            values, rows = ([pair[i] for pair in self._there] for i in (0, 1))
            self._here += zip(_together(values), _together(rows), strict=True)
        self._there, self._waiting = [], 0
        return self._here


def _together(tensors: list[Tensor]) -> list[Tensor]:
    """Return the tensors on the CPU, by one move for all."""
    flat = torch.cat([t.reshape(-1) for t in tensors]).cpu().split_with_sizes([t.numel() for t in tensors])
    return [piece.view(t.shape) for piece, t in zip(flat, tensors, strict=True)]
