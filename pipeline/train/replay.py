"""What was recorded while a batch was sampled, as tensors, and the part of it that one forward needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.errors import DataError
from pipeline.types import Recorded, Rollout, TrainBatch


@dataclass(frozen=True, slots=True)
class Replay:
    """What a forward is to repeat of the sampling. None: nothing was recorded."""

    kept: Tensor | None = None
    """int64 [N, K]: for each of the N tokens asked for, row by row, the tokens it was drawn among; padded with -1, and
    a row of only -1 is the whole vocabulary."""
    routing: Tensor | None = None
    """int16 [B, T, layers, top_k]: the experts of each token; -1 where none were recorded."""


def recorded(rollouts: Sequence[Rollout], width: int) -> Recorded | None:
    """The records of these rows of at most `width` tokens; None where none has any.

    Raises: DataError for a record that does not fit its response, or routing that some rows have and others have not.
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


def rows_recorded(found: Recorded | None, rows: Sequence[int], width: int) -> Recorded | None:
    """Those rows of the records, cut to `width` tokens, beyond which all of them are padding."""
    if found is None:
        return None
    at = torch.tensor(list(rows), dtype=torch.int64)
    sizes = ids = None
    if found.kept_sizes is not None and found.kept_ids is not None:
        ends = found.kept_sizes.sum(1).cumsum(0).tolist()
        starts = [0, *ends[:-1]]
        sizes = found.kept_sizes[at, :width]
        ids = torch.cat([found.kept_ids[starts[i] : ends[i]] for i in rows])
    return Recorded(sizes, ids, None if found.routing is None else found.routing[at, :width])


def replay_of(batch: TrainBatch) -> Replay | None:
    """What a forward over this (micro-)batch repeats, on its device; None where nothing was recorded."""
    return replay_at(batch.recorded, batch.response_mask > 0)


def replay_at(found: Recorded | None, where: Tensor) -> Replay | None:
    """What a forward that is asked for the tokens at `where` (bool [B, T], those recorded) repeats, on its device."""
    if found is None:
        return None
    device, kept = where.device, None
    if found.kept_sizes is not None and found.kept_ids is not None:
        sizes = found.kept_sizes[where.cpu()]
        filled = torch.arange(max(1, int(sizes.max())))[None] < sizes[:, None]
        kept = torch.full(filled.shape, -1, dtype=torch.int64).masked_scatter(filled, found.kept_ids).to(device)
    return Replay(kept, None if found.routing is None else found.routing.to(device))


def _routing(rollouts: Sequence[Rollout], width: int) -> Tensor:
    shapes = {None if r.routing is None else (r.routing.layers, r.routing.top_k) for r in rollouts}
    shape = next(iter(shapes))
    if len(shapes) > 1 or shape is None:
        raise DataError(f"rows of one batch were routed through {sorted(map(str, shapes))} (layers, experts a token)")
    out = torch.full((len(rollouts), width, *shape), -1, dtype=torch.int16)
    for row, r in enumerate(rollouts):
        assert r.routing is not None
        num = len(r.prompt_ids) + len(r.response_ids) - 1
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
    """int64 [n] of little-endian integers."""
    if not data:
        return torch.zeros(0, dtype=torch.int64)
    return torch.frombuffer(bytearray(data), dtype=dtype).to(torch.int64)
