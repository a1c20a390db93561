"""Rows and episodes: the trained tokens of all rows of an episode as one sequence, and the way back.

An episode is drawn turn by turn, in one row or, where its history was rewritten, in several. What compares or discounts
works on episodes: [E, L], the trained tokens in the order in which they were drawn, without holes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of the trained tokens of B rows in E episodes, the longest of which has L of them."""

    of_row: Tensor
    """[B] int64 in 0..E-1: the row's episode, numbered by episode id."""
    last_row: Tensor
    """[E]: the row that holds the episode's last trained token; any of its rows if none trains."""
    mask: Tensor
    """[E, L] bool: the first places of each episode, as many as it has trained tokens."""
    rows: Tensor
    """[tokens]: the row of each trained token, episode by episode, in the order in which they were drawn."""
    columns: Tensor
    """[tokens]: its column."""
    width: int
    """T, the width of the rows."""

    def joined(self, x: Tensor) -> Tensor:
        """Return [E, L]: x [B, T] at the trained tokens of each episode, 0 past them."""
        return x.new_zeros(self.mask.shape).masked_scatter(self.mask, x[self.rows, self.columns])

    def spread(self, x: Tensor) -> Tensor:
        """Return [B, T]: x [E, L] at the trained tokens of the rows, 0 elsewhere. The inverse of `joined`."""
        out = x.new_zeros(len(self.of_row), self.width)
        out[self.rows, self.columns] = x[self.mask]
        return out

    def of_episodes(self, x: Tensor) -> Tensor:
        """Return [E, ...]: x [B, ...] of the row in which each episode ends."""
        return x[self.last_row]


def layout(episode_ids: Tensor, turn_ids: Tensor, mask: Tensor) -> Layout:
    """Return the layout of rows [B] with those episodes, whose trained tokens [B, T] are of those turns.

    A turn's tokens lie in one row. The order of the rows in the batch changes nothing.
    """
    _, of_row = torch.unique(episode_ids, return_inverse=True)
    num = int(of_row.max()) + 1 if len(of_row) else 0
    rows, columns = mask.nonzero(as_tuple=True)
    # Stable, from the least to the most important: by column (as they come), then by turn, then by episode.
    order = torch.argsort(turn_ids[rows, columns], stable=True)
    order = order[torch.argsort(of_row[rows[order]], stable=True)]
    rows, columns = rows[order], columns[order]
    lengths = torch.bincount(of_row[rows], minlength=num)
    longest = max(1, int(lengths.max())) if num else 1
    places = torch.arange(longest, device=mask.device)[None] < lengths[:, None]
    last_row = torch.zeros(num, dtype=torch.int64, device=mask.device)
    last_row[of_row] = torch.arange(len(of_row), device=mask.device)
    trains = lengths > 0
    last_row[trains] = rows[lengths.cumsum(0)[trains] - 1]
    return Layout(of_row, last_row, places, rows, columns, mask.shape[1])


@dataclass(frozen=True, slots=True)
class Shares:
    """The part that each row of a batch is of its episode, counted over the whole batch, before any micro-batch."""

    lengths: Tensor
    """[B] float: trained tokens of the row's whole episode."""
    counts: Tensor
    """[B] bool: the row counts its episode; one row of each does."""

    def at(self, rows: Tensor) -> Shares:
        """Return the shares of those rows."""
        return Shares(self.lengths[rows], self.counts[rows])


def shares_of(where: Layout) -> Shares:
    """Return the shares of the rows of that layout."""
    counts = torch.zeros(len(where.of_row), dtype=torch.bool, device=where.mask.device)
    counts[where.last_row] = True
    return Shares(where.mask.sum(1)[where.of_row].double(), counts)


def sequences_of(mask: Tensor, shares: Shares | None) -> Tensor:
    """Return [B] bool: rows that count a response, which has a token that trains; one row of each episode."""
    trains = mask.any(dim=1)
    return trains if shares is None else trains & shares.counts


def num_forked(episode_ids: Tensor) -> int:
    """Return the number of episodes of more than one row."""
    return int((torch.unique(episode_ids, return_counts=True)[1] > 1).sum())
