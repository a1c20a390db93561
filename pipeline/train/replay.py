"""Records of the sampling of a batch (kept sets, routes of experts) as tensors, and what a forward replays of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from verizero.pipeline.errors import DataError
from verizero.pipeline.models.forward import Replay
from verizero.pipeline.rows import TrainedRow
from verizero.pipeline.types import SamplingRecords, TrainBatch


def collate_records(rows: Sequence[TrainedRow], width: int) -> SamplingRecords | None:
    """Return the records of rows of at most `width` tokens; None if no row has any.

    Only tokens that train in the row have a kept set.

    Raises: DataError for routing that only some rows have.
    """
    sizes = ids = None
    spans = [(i, span, span.turn.kept) for i, row in enumerate(rows) for span in row.spans]
    kept_sets = [(i, span, kept) for i, span, kept in spans if kept is not None]
    if kept_sets:
        sizes = torch.zeros(len(rows), width, dtype=torch.int64)
        for i, span, kept in kept_sets:
            sizes[i, span.start : span.stop] = torch.tensor(kept.sizes, dtype=torch.int64)
        ids = torch.cat([_integers(kept.ids, torch.int32) for _, _, kept in kept_sets])
    routing = _routing(rows, width) if any(t.routing is not None for row in rows for t in row.turns) else None
    if sizes is None and routing is None:
        return None
    return SamplingRecords(sizes, ids, routing)


def records_of_rows(records: SamplingRecords | None, rows: Sequence[int], width: int) -> SamplingRecords | None:
    """Return the records of those rows, cut to `width` tokens."""
    if records is None:
        return None
    row_indices = torch.tensor(list(rows), dtype=torch.int64)
    sizes = ids = None
    if records.kept_sizes is not None and records.kept_ids is not None:
        # Ids of all rows are in one list, by row, then token; row i has those from starts[i] to ends[i].
        ends = records.kept_sizes.sum(1).cumsum(0).tolist()
        starts = [0, *ends[:-1]]
        sizes = records.kept_sizes[row_indices, :width]
        ids = torch.cat([records.kept_ids[starts[i] : ends[i]] for i in rows])
    return SamplingRecords(sizes, ids, None if records.routing is None else records.routing[row_indices, :width])


def replay_of(batch: TrainBatch) -> Replay:
    """Return the choices of the sampling that a forward for this (micro-)batch's responses repeats, on its device."""
    return replay_at(batch.records, batch.response_mask > 0)


def replay_at(records: SamplingRecords | None, where: Tensor) -> Replay:
    """Return the choices of the sampling that a forward for the tokens at `where` (bool [B, T]) repeats."""
    if records is None:
        return Replay()
    device, kept_N_K = where.device, None
    if records.kept_sizes is not None and records.kept_ids is not None:
        sizes_N = records.kept_sizes[where.cpu()]  # row by row, as the ids are
        mask_N_K = torch.arange(max(1, int(sizes_N.max())))[None] < sizes_N[:, None]
        # masked_scatter fills in order: each token's ids come to the start of its row.
        kept_N_K = torch.full(mask_N_K.shape, -1, dtype=torch.int64).masked_scatter(mask_N_K, records.kept_ids)
        kept_N_K = kept_N_K.to(device)
    return Replay(kept_N_K, None if records.routing is None else records.routing.to(device))


def _routing(rows: Sequence[TrainedRow], width: int) -> Tensor:
    """Return int16 [B, T, layers, top_k], the experts of each token; -1 where none were recorded."""
    routes_of_rows = [[t.routing for t in row.turns] for row in rows]
    shapes = {None if r is None else (r.layers, r.top_k) for routes in routes_of_rows for r in routes}
    shape = next(iter(shapes))
    if len(shapes) > 1 or shape is None:
        raise DataError(f"rows of one batch were routed through {sorted(map(str, shapes))} (layers, experts a token)")
    out = torch.full((len(rows), width, *shape), -1, dtype=torch.int16)
    for i, routes in enumerate(routes_of_rows):
        # The last token of a row is never an input; the turns' records follow one another without a gap.
        experts = _integers(b"".join(r.experts for r in routes if r is not None), torch.int16).view(-1, *shape)
        out[i, : len(experts)] = experts.to(torch.int16)
    return out


def _integers(data: bytes, dtype: torch.dtype) -> Tensor:
    """Return int64 [n]: the little-endian integers in `data`."""
    if not data:
        return torch.zeros(0, dtype=torch.int64)
    return torch.frombuffer(bytearray(data), dtype=dtype).to(torch.int64)  # bytearray: torch wants it writable
