"""The micro-batches of an optimiser step, with the tokens that train in each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from verizero.pipeline.models.forward import Targets
from verizero.pipeline.models.widths import padded_width
from verizero.pipeline.train.collate import Micro, deal, rows_of, untrained
from verizero.pipeline.train.ranks import ALONE, Ranks
from verizero.pipeline.train.sharing import targets_of
from verizero.pipeline.types import TrainBatch


def micros_of(
    batch: TrainBatch, rows: Sequence[int], max_tokens: int, ranks: Ranks = ALONE, ends: bool = False
) -> list[Micro]:
    """Return this rank's micro-batches of those rows. All ranks have as many: the last ones of some are idle.

    `ends`: where rows are packed, the state after the last token of each is computed too.
    """
    device = batch.rewards.device
    sizes = counted(batch)
    prompts = None if batch.prompts is None else [batch.prompts[i] for i in rows]
    pieces, num_idle = deal([sizes[i] for i in rows], max_tokens, ranks.rank, ranks.size, prompts)
    own = [[rows[i] for i in piece] for piece in pieces]
    longest = [padded_width(max(sizes[i] for i in piece), device) for piece in own]
    # One copy to the device for all, because the host waits for each.
    places, targets = targets_of(batch, own, longest, max_tokens, ends)
    parts = [rows_of(batch, p, at, width) for p, at, width in zip(own, places, longest, strict=True)]
    if not num_idle:
        return [*map(Micro, places, parts, targets)]
    nothing = torch.zeros(1, dtype=torch.int64, device=device)  # any row: none of it trains
    return [*map(Micro, places, parts, targets), *[Micro(nothing, untrained(batch), Targets(nothing[:0]))] * num_idle]


def cut_to(values: Tensor | None, rows: Tensor, width: int) -> Tensor | None:
    return None if values is None else values[rows, :width]


def counted(batch: TrainBatch) -> list[int]:
    """Return the tokens by which each row counts as it is dealt: its own, and padding where there is any."""
    lengths: list[int] = batch.attention_mask.sum(1).tolist()
    return lengths if batch.prompts is not None else [padded_width(n, batch.rewards.device) for n in lengths]
