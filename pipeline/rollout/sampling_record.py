"""The record that the embedded engine keeps of a decode: sets that tokens were drawn from, and experts used."""

from __future__ import annotations

import torch
from torch import Tensor

from verizero.pipeline.rollout.sampling import Kept
from verizero.pipeline.types import KeptTokens, Routing

MOVED_AT_ONCE = 1 << 20
"""Experts are moved to the CPU in pieces of about this many numbers: each move waits for the device."""
SETS_AT_ONCE = 1 << 24
"""Sets are moved once they take so many numbers on the device, 64 MiB; 256 rows of 1,024 tokens: every 63 steps."""
MOST_STEPS = 64
"""Most steps whose sets stay on the device. One wait in 64 steps costs next to nothing; more would take memory."""


class Recorder:
    """Collects the sets and experts of each step on the device, and moves them to the CPU now and then."""

    def __init__(self, rows: int, slots: int, steps: int) -> None:
        self.rows, self.slots, self.steps = rows, slots, steps
        self._routing = Moved()
        self._sets: _Sets | None = None

    @property
    def has_routes(self) -> bool:
        """True if experts were recorded."""
        return self._routing.has_any

    def keep(self, at: Tensor, kept: Kept, slots: Tensor, owners: Tensor, running: Tensor) -> None:
        """Add sets: row i of `kept` is that of token at[i] of the row owners[i], and counts where running[i].

        The host reads nothing; after the first call no tensor is made that outlives it.
        """
        if self._sets is None:
            self._sets = _Sets(self.rows, self.slots, self.steps, kept.ids)
        self._sets.add(at, kept, slots, owners, running)

    def step_taken(self) -> None:
        """Note that sets of one more step were added; move them to the CPU where no more have room."""
        if self._sets is not None:
            self._sets.step_taken()

    def route(self, routing: Tensor, rows: Tensor) -> None:
        """Add the experts [n, tokens, layers, top_k] of rows `rows` [n]: first of a row's prompt, then a token each."""
        self._routing.add(routing, rows)

    def kept(self, lengths: list[int]) -> list[KeptTokens] | None:
        """Return the sets of each row, of lengths[i] tokens; None if no sets are recorded."""
        return None if self._sets is None else self._sets.by_row(lengths)

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


class _Sets:
    """Sets of tokens: those of the latest steps on the device, at fixed addresses, those before on the CPU."""

    def __init__(self, rows: int, slots: int, steps: int, like: Tensor) -> None:
        self._rows = rows
        most, device = like.shape[1], like.device
        self._depth = max(1, min(MOST_STEPS, steps, SETS_AT_ONCE // (slots * (most + 1))))
        # The last column has the row that a set belongs to, and -1 where there is none.
        self._latest = torch.full((self._depth, slots, most + 1), -1, dtype=torch.int32, device=device)
        self._place = torch.zeros(1, dtype=torch.int64, device=device)
        # One row and one column more, for rows that have ended and are still computed.
        self._sizes = torch.zeros(rows + 1, steps + 1, dtype=torch.int64, device=device)
        self._bounded = torch.zeros(rows + 1, dtype=torch.int64, device=device)
        self._waiting = 0
        self._moved: list[tuple[Tensor, Tensor]] = []

    def add(self, at: Tensor, kept: Kept, slots: Tensor, owners: Tensor, running: Tensor) -> None:
        """Add the sets of one step."""
        rows = torch.where(running, owners, self._rows)
        # Rows that run are distinct, so no size and no addition is lost.
        self._sizes[rows, at] = kept.sizes * running
        self._bounded[rows] += kept.bounded & running
        # A whole vocabulary is recorded as a set of size 0, and so without its tokens.
        names = torch.where(running & (kept.sizes > 0), owners, -1)
        self._latest[self._place, slots] = torch.cat([kept.ids, names[:, None].to(torch.int32)], 1)
        self._place += 1

    def step_taken(self) -> None:
        """Count a step; make room for the next."""
        self._waiting += 1
        if self._waiting == self._depth:
            self._move()

    def by_row(self, lengths: list[int]) -> list[KeptTokens]:
        """Return the sets of each row."""
        self._move()
        owners, ids = (torch.cat(parts) for parts in zip(*self._moved, strict=True))
        # Steps were added one after another: a stable sort by row keeps each row's sets in the order of its tokens.
        lengths_of_rows = torch.bincount(owners, minlength=self._rows).tolist()
        pieces = ids[owners.argsort(stable=True)].split_with_sizes(lengths_of_rows)
        sizes, bounded = self._sizes.tolist(), self._bounded.tolist()
        return [KeptTokens(tuple(sizes[i][:n]), pieces[i].numpy().tobytes(), bounded[i]) for i, n in enumerate(lengths)]

    def _move(self) -> None:
        latest = self._latest[: self._waiting]
        flat = latest.cpu().flatten(0, 1)
        used = flat[flat[:, -1] >= 0]
        is_token = used[:, :-1] >= 0
        self._moved.append((used[:, -1].repeat_interleave(is_token.sum(1)), used[:, :-1][is_token]))
        # On the CPU `flat` is the same memory: it is emptied only now.
        latest[:, :, -1] = -1
        self._place.zero_()
        self._waiting = 0


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
