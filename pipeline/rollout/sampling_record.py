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
        self.rows, self.steps = rows, steps
        # One row and one column more, for rows that have ended and are still computed.
        self._sizes = torch.zeros(0, dtype=torch.int64, device=device)
        self._bounded = torch.zeros(rows + 1, dtype=torch.int64, device=device)
        self._ids = Moved()
        self._routing = Moved()

    @property
    def has_routes(self) -> bool:
        """True if experts were recorded."""
        return self._routing.has_any

    def keep(self, at: Tensor, kept: Kept, rows: Tensor, running: Tensor) -> None:
        """Add sets: row i of `kept` is that of token at[i] of the row `rows[i]`, and counts where `running[i]`."""
        if not len(self._sizes):
            self._sizes = at.new_zeros(self.rows + 1, self.steps + 1)
        sizes = kept.possible.sum(1)
        # A whole vocabulary is recorded as a set of size 0.
        recorded = running & (sizes < kept.possible.shape[1])
        rows = torch.where(running, rows, self.rows)
        # Rows that run are distinct, so no size and no addition is lost.
        self._sizes[rows, at] = sizes * recorded
        self._bounded[rows] += kept.bounded & running
        # Only the tokens kept are moved: the table of the vocabulary stays where it is.
        places, ids = (kept.possible & recorded[:, None]).nonzero().unbind(1)
        self._ids.add(ids.to(torch.int32), rows.index_select(0, places))

    def route(self, routing: Tensor, rows: Tensor) -> None:
        """Add the experts [n, tokens, layers, top_k] of rows `rows` [n]: first of a row's prompt, then a token each."""
        self._routing.add(routing, rows)

    def kept(self, lengths: list[int]) -> list[KeptTokens]:
        """Return the sets of each row; row i has lengths[i] tokens."""
        # Steps were added one after another: a stable sort by row keeps each row's sets in the order of its tokens.
        moved = self._ids.on_cpu()
        owners = torch.cat([rows for _, rows in moved])
        ids = torch.cat([ids for ids, _ in moved])[owners.argsort(stable=True)]
        pieces = ids.split_with_sizes(torch.bincount(owners, minlength=self.rows).tolist())
        sizes, bounded = self._sizes.tolist(), self._bounded.tolist()
        return [KeptTokens(tuple(sizes[i][:n]), pieces[i].numpy().tobytes(), bounded[i]) for i, n in enumerate(lengths)]

    def routes(self, prompt_lengths: list[int], lengths: list[int]) -> list[Routing]:
        """Return the experts of each row's prompt and response; the last token, never computed, has none."""
        moved = self._routing.on_cpu()
        layers, top_k = moved[0][0].shape[2:]
        before = torch.tensor(prompt_lengths)
        width = max(prompt_lengths) + self.steps
        table = torch.full((self.rows, width, layers, top_k), -1, dtype=torch.int16)
        filled = torch.zeros(self.rows, dtype=torch.int64)
        for routing, rows in moved:
            if int(filled[rows[0]]) == 0:
                for row, own in zip(rows.tolist(), routing, strict=True):
                    table[row, : prompt_lengths[row]] = own[-prompt_lengths[row] :]  # prompts are padded on the left
                filled[rows] = before[rows]
            else:
                table[rows, filled[rows]] = routing[:, 0]
                filled[rows] = (filled[rows] + 1).clamp_(max=width - 1)
        out = []
        for own, prompt, response in zip(table, prompt_lengths, lengths, strict=True):
            used = own[: prompt + response - 1]
            out.append(Routing(layers, top_k, used.contiguous().numpy().tobytes()))
        return out


class Moved:
    """Pairs of tensors of a device, moved to the CPU some at a time."""

    def __init__(self) -> None:
        self._there: list[tuple[Tensor, Tensor]] = []
        self._here: list[tuple[Tensor, Tensor]] = []
        self._waiting = 0

    @property
    def has_any(self) -> bool:
        """True if a pair was added."""
        return bool(self._here or self._there)

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
