"""The micro-batches of an optimiser step, with the tokens that train in each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from verizero.pipeline.models.forward import Targets
from verizero.pipeline.models.runs import Runs, moved
from verizero.pipeline.models.widths import padded_width
from verizero.pipeline.train.collate import Micro, deal, rows_of, untrained
from verizero.pipeline.train.ranks import ALONE, Ranks
from verizero.pipeline.types import TrainBatch


def micros_of(
    batch: TrainBatch, rows: Sequence[int], max_tokens: int, ranks: Ranks = ALONE, ends: bool = False
) -> list[Micro]:
    """Return this rank's micro-batches of those rows. All ranks have as many: the last ones of some are idle.

    `ends`: where rows are packed, the state after the last token of each is computed too.
    """
    sizes = counted(batch)
    prompts = None if batch.prompts is None else [batch.prompts[i] for i in rows]
    pieces, num_idle = deal([sizes[i] for i in rows], max_tokens, ranks.rank, ranks.size, prompts)
    micros = micros_at(batch, [[rows[i] for i in piece] for piece in pieces], sizes, max_tokens, ends)
    nothing = torch.zeros(1, dtype=torch.int64, device=batch.rewards.device)  # any row: none of it trains
    idle = [Micro(nothing, untrained(batch), Targets(nothing[:0]))] if num_idle else []
    return [*micros, *idle * num_idle]


def micros_at(
    batch: TrainBatch, pieces: Sequence[Sequence[int]], sizes: Sequence[int], most: int, ends: bool = False
) -> list[Micro]:
    """Return the micro-batches of those rows each, of which a full one has `most` tokens.

    `sizes`: of all rows, as `counted` says, for which the host waits once; `ends`: see `micros_of`.
    """
    assert batch.spans is not None
    device, widths, made = batch.rewards.device, [], []
    for rows in pieces:
        widths.append(padded_width(max(sizes[i] for i in rows), device))
        spans = [batch.spans[i] for i in rows]
        runs = answers = None
        if batch.prompts is not None:
            runs = Runs.of([batch.prompts[i] for i in rows], widths[-1], ends=ends, most=most, device=device)
        if batch.answers is not None:
            both = [sorted({*own, *batch.answers[i]}) for own, i in zip(spans, rows, strict=True)]
            answers = places_of(both, widths[-1])
        made.append(Targets(places_of(spans, widths[-1]), runs, answers))
    # One copy to the device for all, because the host waits for each.
    places = [torch.tensor(rows, dtype=torch.int64) for rows in pieces]
    there = moved([*places, *(t for targets in made for t in targets.tensors())], device)
    places = [next(there) for _ in pieces]
    parts = [rows_of(batch, rows, at, width) for rows, at, width in zip(pieces, places, widths, strict=True)]
    return [*map(Micro, places, parts, (targets.with_tensors(there) for targets in made))]


def places_of(spans: Sequence[Sequence[tuple[int, int]]], width: int) -> Tensor:
    """Return int64 [n]: the places of the tokens in the spans of rows [b, width], row by row."""
    pieces = [torch.arange(i * width + begin, i * width + end) for i, own in enumerate(spans) for begin, end in own]
    return torch.cat(pieces) if pieces else torch.zeros(0, dtype=torch.int64)


def cut_to(values: Tensor | None, rows: Tensor, width: int) -> Tensor | None:
    return None if values is None else values[rows, :width]


def counted(batch: TrainBatch) -> list[int]:
    """Return the tokens by which each row counts as it is dealt: its own, and padding where there is any."""
    lengths: list[int] = batch.attention_mask.sum(1).tolist()
    return lengths if batch.prompts is not None else [padded_width(n, batch.rewards.device) for n in lengths]
