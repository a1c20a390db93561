"""Records of the sampling of a batch as tensors, and the part of them that one forward repeats."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from verizero.pipeline.errors import DataError
from verizero.pipeline.models.forward import Replay
from verizero.pipeline.rows import TrainedRow
from verizero.pipeline.types import Recorded, TrainBatch


def recorded(rows: Sequence[TrainedRow], width: int, here: Sequence[bool] = ()) -> Recorded | None:
    """Return the records of rows of at most `width` tokens; None if no row has any.

    `here`: for each row False if other ranks have its records; empty: all are here.

    Kept sets are those of tokens that train, so that a token that was observed, or trains in another row, has none.

    Raises: DataError for routing that only some rows have.
    """
    places = None
    if not all(here):
        places = tuple(k - 1 if is_here else -1 for k, is_here in zip(accumulate(here), here, strict=True))
        rows = [row for row, is_here in zip(rows, here, strict=True) if is_here]
    sizes = ids = None
    kept = [(i, span, span.turn.kept) for i, row in enumerate(rows) for span in row.spans if span.turn.kept is not None]
    if kept:
        sizes = torch.zeros(len(rows), width, dtype=torch.int64)
        for i, span, sets in kept:
            sizes[i, span.start : span.stop] = torch.tensor(sets.sizes, dtype=torch.int64)
        ids = torch.cat([_read(sets.ids, torch.int32) for _, _, sets in kept])
    routing = _routing(rows, width) if any(t.routing is not None for row in rows for t in row.turns) else None
    if sizes is None and routing is None:
        return None
    return Recorded(sizes, ids, routing, places)


def rows_recorded(records: Recorded | None, rows: Sequence[int], width: int) -> Recorded | None:
    """Return the records of those rows, cut to `width` tokens, beyond which all of them are padding.

    None also for rows whose records other ranks have.
    """
    if records is None:
        return None
    if records.places is not None:
        rows = [records.places[i] for i in rows]
    if min(rows) < 0:
        return None
    at = torch.tensor(list(rows), dtype=torch.int64)
    sizes = ids = None
    if records.kept_sizes is not None and records.kept_ids is not None:
        # Ids of all rows are in one list, by row, then token; row i has those from starts[i] to ends[i].
        ends = records.kept_sizes.sum(1).cumsum(0).tolist()
        starts = [0, *ends[:-1]]
        sizes = records.kept_sizes[at, :width]
        ids = torch.cat([records.kept_ids[starts[i] : ends[i]] for i in rows])
    return Recorded(sizes, ids, None if records.routing is None else records.routing[at, :width])


def replay_of(batch: TrainBatch) -> Replay:
    """Return the recorded choices that a forward over this (micro-)batch repeats, on its device."""
    return replay_at(batch.recorded, batch.response_mask > 0)


def replay_at(records: Recorded | None, where: Tensor) -> Replay:
    """Return the choices that a forward for the recorded tokens at `where` (bool [B, T]) repeats, on its device."""
    if records is None:
        return Replay()
    device, kept = where.device, None
    if records.kept_sizes is not None and records.kept_ids is not None:
        sizes = records.kept_sizes[where.cpu()]  # [N], row by row, as the ids are
        filled = torch.arange(max(1, int(sizes.max())))[None] < sizes[:, None]
        # masked_scatter fills in order: each token's ids at the start of its row of [N, K].
        kept = torch.full(filled.shape, -1, dtype=torch.int64).masked_scatter(filled, records.kept_ids).to(device)
    return Replay(kept, None if records.routing is None else records.routing.to(device))


def _routing(rows: Sequence[TrainedRow], width: int) -> Tensor:
    records = [[t.routing for t in row.turns] for row in rows]
    shapes = {None if r is None else (r.layers, r.top_k) for own in records for r in own}
    shape = next(iter(shapes))
    if len(shapes) > 1 or shape is None:
        raise DataError(f"rows of one batch were routed through {sorted(map(str, shapes))} (layers, experts a token)")
    out = torch.full((len(rows), width, *shape), -1, dtype=torch.int16)
    for i, own in enumerate(records):
        # The last token of a row is never an input; the turns' records follow one another without a gap.
        experts = _read(b"".join(r.experts for r in own if r is not None), torch.int16).view(-1, *shape)
        out[i, : len(experts)] = experts.to(torch.int16)
    return out


def _read(data: bytes, dtype: torch.dtype) -> Tensor:
    """Return int64 [n], read from little-endian integers."""
    if not data:
        return torch.zeros(0, dtype=torch.int64)
    return torch.frombuffer(bytearray(data), dtype=dtype).to(torch.int64)  # bytearray: torch wants it writable
