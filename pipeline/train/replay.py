"""Records of the sampling of a batch as tensors, and the part of them that one forward repeats."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pipeline.errors import DataError
from pipeline.models.forward import Replay
from pipeline.types import Recorded, Rollout, TrainBatch


def recorded(rollouts: Sequence[Rollout], width: int) -> Recorded | None:
    """Return the records of rows of at most `width` tokens; None if no row has any.

    Raises: DataError for a record that does not fit its response, or routing that only some rows have.
    """
    sizes = ids = None
    if any(r.kept is not None for r in rollouts):
        sizes = torch.zeros(len(rollouts), width, dtype=torch.int64)
        for row, r in enumerate(rollouts):
            if r.kept is not None:
                sizes[row, _span(r)] = _checked_sizes(r)
        ids = torch.cat([_read(r.kept.ids, torch.int32) for r in rollouts if r.kept is not None])
    routing = _routing(rollouts, width) if any(r.routing is not None for r in rollouts) else None
    if sizes is None and routing is None:
        return None
    return Recorded(sizes, ids, routing)


def rows_recorded(records: Recorded | None, rows: Sequence[int], width: int) -> Recorded | None:
    """Return the records of those rows, cut to `width` tokens, beyond which all of them are padding."""
    if records is None:
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


def _routing(rollouts: Sequence[Rollout], width: int) -> Tensor:
    shapes = {None if r.routing is None else (r.routing.layers, r.routing.top_k) for r in rollouts}
    shape = next(iter(shapes))
    if len(shapes) > 1 or shape is None:
        raise DataError(f"rows of one batch were routed through {sorted(map(str, shapes))} (layers, experts a token)")
    out = torch.full((len(rollouts), width, *shape), -1, dtype=torch.int16)
    for row, r in enumerate(rollouts):
        assert r.routing is not None
        num = len(r.prompt_ids) + len(r.response_ids) - 1  # the last token is never an input
        out[row, :num] = _read(r.routing.experts, torch.int16).view(num, *shape).to(torch.int16)
    return out


def _checked_sizes(rollout: Rollout) -> Tensor:
    kept = rollout.kept
    assert kept is not None
    sizes = torch.tensor(kept.sizes, dtype=torch.int64)
    if len(sizes) != len(rollout.response_ids) or int(sizes.sum()) * 4 != len(kept.ids):
        raise DataError(
            f"response {rollout.sample} to {rollout.prompt_id!r} has {len(rollout.response_ids)} tokens and kept sets "
            f"of {len(sizes)}, which hold {len(kept.ids) // 4} of {int(sizes.sum())} ids"
        )
    return sizes


def _span(rollout: Rollout) -> slice:
    return slice(len(rollout.prompt_ids), len(rollout.prompt_ids) + len(rollout.response_ids))


def _read(data: bytes, dtype: torch.dtype) -> Tensor:
    """Return int64 [n], read from little-endian integers."""
    if not data:
        return torch.zeros(0, dtype=torch.int64)
    return torch.frombuffer(bytearray(data), dtype=dtype).to(torch.int64)  # bytearray: torch wants it writable
