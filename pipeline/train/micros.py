"""Make this rank's micro-batches of an optimiser step, with the indices of the tokens that train."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import torch
from torch import Tensor

from verizero.pipeline.models.forward import Targets
from verizero.pipeline.models.runs import Runs, moved
from verizero.pipeline.models.widths import padded_width
from verizero.pipeline.train.collate import Micro, idle_micro_batch, rank_micro_batches, rows_of
from verizero.pipeline.train.ranks import ALONE, Ranks
from verizero.pipeline.train.replay import records_of_rows
from verizero.pipeline.types import Path, Run, TrainBatch


def micros_of(
    batch: TrainBatch, rows: Sequence[int], max_tokens: int, ranks: Ranks = ALONE, ends: bool = False
) -> list[Micro]:
    """Return this rank's micro-batches of those rows. All ranks have as many: the last ones of some are idle.

    `ends`: packed rows include the state after the last token of each.
    """
    costs = row_costs(batch)
    all_paths = cut_paths(batch.paths, batch.is_routed)
    paths = None if all_paths is None else [all_paths[i] for i in rows]
    pieces, num_idle = rank_micro_batches([costs[i] for i in rows], max_tokens, ranks.rank, ranks.size, paths)
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
        paths = _paths_at(batch, rows, widths[-1])
        runs = None if paths is None else Runs.of(paths, widths[-1], ends=ends, most=max_tokens, device=device)
        answers = None
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


def cut_paths(paths: tuple[Path, ...] | None, is_routed: bool) -> tuple[Path, ...] | None:
    """Return the paths by which rows are divided among ranks and micro-batches, as all ranks have them.

    A rank knows the experts of its own rows alone, so nobody else knows which tokens of a run are computed once.
    """
    return tuple((Run(i, path[-1].end),) for i, path in enumerate(paths)) if paths and is_routed else paths


def _paths_at(batch: TrainBatch, rows: Sequence[int], width: int) -> tuple[Path, ...] | None:
    """Return the paths of those rows, of at most `width` tokens, where runs with other experts are others."""
    if batch.paths is None:
        return None
    paths = tuple(batch.paths[i] for i in rows)
    records = records_of_rows(batch.records, rows, width) if batch.is_routed else None
    return paths if records is None or records.routing is None else parted(paths, records.routing)


def parted(paths: Sequence[Path], routing: Tensor) -> tuple[Path, ...]:
    """Return the paths, with other runs from where a row's experts `routing` [B, T, layers, top_k] are others."""
    numbers = count()
    known: dict[tuple[int, int], list[tuple[Tensor, int]]] = {}  # (run before, run) -> experts and new numbers
    out = []
    for path, experts in zip(paths, routing, strict=True):
        new: list[Run] = []
        for run in path:
            before = new[-1] if new else Run(-1, 0)
            own = experts[before.end : run.end]
            alike = known.setdefault((before.number, run.number), [])
            number = next((n for other, n in alike if torch.equal(own, other)), None)
            if number is None:
                number = next(numbers)
                alike.append((own, number))
            new.append(Run(number, run.end))
        out.append(tuple(new))
    return tuple(out)


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
    return lengths if batch.paths is not None else [padded_width(n, batch.rewards.device) for n in lengths]
