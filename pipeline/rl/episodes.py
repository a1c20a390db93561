"""Rows and episodes: join the trained tokens of all rows of an episode into one sequence, and back.

An episode is sampled turn by turn, in one row or, if its history was rewritten, in several. Advantages are computed on
episodes: [E, L], the trained tokens in the order in which they were sampled, without holes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class EpisodeLayout:
    """Which token of B rows is which trained token of E episodes, the longest of which has L of them."""

    of_row: Tensor
    """[B] int64 in 0..E-1: the row's episode, numbered by episode id."""
    last_row: Tensor
    """[E]: the row with the episode's last trained token; any of its rows if none trains."""
    mask: Tensor
    """[E, L] bool: True up to the number of trained tokens of each episode."""
    rows: Tensor
    """[tokens]: the row of each trained token, episode by episode, in the order in which they were sampled."""
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


def episode_layout(episode_ids: Tensor, turn_ids: Tensor, mask: Tensor) -> EpisodeLayout:
    """Return the layout of rows with episode ids [B], turn ids [B, T] and a mask [B, T] of trained tokens.

    All tokens of a turn are in one row. The order of the rows in the batch does not matter.
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
    episode_mask = torch.arange(longest, device=mask.device)[None] < lengths[:, None]
    last_row = torch.zeros(num, dtype=torch.int64, device=mask.device)
    last_row[of_row] = torch.arange(len(of_row), device=mask.device)
    trains = lengths > 0
    last_row[trains] = rows[lengths.cumsum(0)[trains] - 1]
    return EpisodeLayout(of_row, last_row, episode_mask, rows, columns, mask.shape[1])


@dataclass(frozen=True, slots=True)
class Shares:
    """For each row its episode's length, and whether it counts for the episode; over the whole batch."""

    lengths: Tensor
    """[B] float: trained tokens of the row's whole episode."""
    counts: Tensor
    """[B] bool: True for one row of each episode, so that a sum over rows counts episodes."""

    def at(self, rows: Tensor) -> Shares:
        """Return the shares of those rows."""
        return Shares(self.lengths[rows], self.counts[rows])


def shares_of(layout: EpisodeLayout) -> Shares:
    """Return the shares of the rows of that layout."""
    counts = torch.zeros(len(layout.of_row), dtype=torch.bool, device=layout.mask.device)
    counts[layout.last_row] = True
    return Shares(layout.mask.sum(1)[layout.of_row].double(), counts)


def sequences_of(mask: Tensor, shares: Shares | None) -> Tensor:
    """Return [B] bool: True for one row of each episode with a trained token, so that its sum counts responses."""
    trains = mask.any(dim=1)
    return trains if shares is None else trains & shares.counts


def num_forked(episode_ids: Tensor) -> int:
    """Return the number of episodes of more than one row."""
    return int((torch.unique(episode_ids, return_counts=True)[1] > 1).sum())
