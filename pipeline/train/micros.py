"""Make this rank's micro-batches of an optimiser step, with the indices of the tokens that train."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from verizero.pipeline.models.forward import Targets
from verizero.pipeline.models.runs import Runs, moved
from verizero.pipeline.models.widths import padded_width
from verizero.pipeline.train.collate import Micro, idle_micro_batch, rank_micro_batches, rows_of
from verizero.pipeline.train.ranks import ALONE, Ranks
from verizero.pipeline.types import TrainBatch


def micros_of(
    batch: TrainBatch, rows: Sequence[int], max_tokens: int, ranks: Ranks = ALONE, ends: bool = False
) -> list[Micro]:
    """Return this rank's micro-batches of those rows. All ranks have as many: the last ones of some are idle.

    `ends`: packed rows include the state after the last token of each.
    """
    costs = row_costs(batch)
    prompts = None if batch.prompts is None else [batch.prompts[i] for i in rows]
    pieces, num_idle = rank_micro_batches([costs[i] for i in rows], max_tokens, ranks.rank, ranks.size, prompts)
    micros = micros_at(batch, [[rows[i] for i in piece] for piece in pieces], costs, max_tokens, ends)
    row_0 = torch.zeros(1, dtype=torch.int64, device=batch.rewards.device)  # any row: none of its tokens trains
    idle = [Micro(row_0, idle_micro_batch(batch), Targets(row_0[:0]))] if num_idle else []
    return [*micros, *idle * num_idle]


def micros_at(
    batch: TrainBatch, pieces: Sequence[Sequence[int]], costs: Sequence[int], max_tokens: int, ends: bool = False
) -> list[Micro]:
    """Make one micro-batch of each list of rows. `max_tokens`: the limit of their tokens.

    `costs`: `row_costs` of all rows, for which the host waits once; `ends`: see `micros_of`.
    """
    assert batch.spans is not None
    device, widths, targets_of_micros = batch.rewards.device, [], []
    for rows in pieces:
        widths.append(padded_width(max(costs[i] for i in rows), device))
        trained_spans = [batch.spans[i] for i in rows]
        runs = answers = None
        if batch.prompts is not None:
            runs = Runs.of([batch.prompts[i] for i in rows], widths[-1], ends=ends, most=max_tokens, device=device)
        if batch.answers is not None:
            both = [sorted({*spans, *batch.answers[i]}) for spans, i in zip(trained_spans, rows, strict=True)]
            answers = span_indices(both, widths[-1])
        targets_of_micros.append(Targets(span_indices(trained_spans, widths[-1]), runs, answers))
    # One copy to the device for all tensors, because the host waits for each copy.
    row_indices = [torch.tensor(rows, dtype=torch.int64) for rows in pieces]
    on_device = moved([*row_indices, *(t for targets in targets_of_micros for t in targets.tensors())], device)
    row_indices = [next(on_device) for _ in pieces]
    batches = [rows_of(batch, *part) for part in zip(pieces, row_indices, widths, strict=True)]
    return [*map(Micro, row_indices, batches, (targets.with_tensors(on_device) for targets in targets_of_micros))]


def span_indices(spans: Sequence[Sequence[tuple[int, int]]], width: int) -> Tensor:
    """Return int64 [n]: indices of the spans' tokens in the flattened rows [b * width], row by row."""
    indices = [
        torch.arange(i * width + begin, i * width + end)
        for i, spans_of_row in enumerate(spans)
        for begin, end in spans_of_row
    ]
    return torch.cat(indices) if indices else torch.zeros(0, dtype=torch.int64)


def cut_to(values: Tensor | None, rows: Tensor, width: int) -> Tensor | None:
    """Return [b, width]: the values [B, T] of those rows, cut to the width of their micro-batch."""
    return None if values is None else values[rows, :width]


def row_costs(batch: TrainBatch) -> list[int]:
    """Return each row's cost in tokens, with padding unless rows are packed."""
    lengths: list[int] = batch.attention_mask.sum(1).tolist()
    return lengths if batch.prompts is not None else [padded_width(n, batch.rewards.device) for n in lengths]
