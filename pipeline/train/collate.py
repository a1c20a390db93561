"""Groups to tensors: the choice of the tokens that train, and the cut of rows into micro-batches."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from pipeline.errors import DataError
from pipeline.models.packed import ALIKE
from pipeline.models.widths import padded_width
from pipeline.train.replay import recorded, rows_recorded
from pipeline.types import Group, TrainBatch

FILLED = 0.25
"""A micro-batch that holds this share of the tokens that it may hold is worth its own forward and backward."""


def collate(groups: Sequence[Group], pad_id: int, device: torch.device | str = "cpu") -> TrainBatch:
    """Return the members of `groups` that have a reward as one right-padded batch; group_ids count the groups.

    Every response token trains, the end-of-sequence token included.

    Raises: ValueError if no member has a reward; DataError for log-probs or records of sampling that do not fit their
    response.
    """
    members = [(g, m.rollout, m.reward) for g, x in enumerate(groups) for m in x.members if m.reward is not None]
    if not members:
        raise ValueError("no response has a reward; there is nothing to train on")
    rollouts = [r for _, r, _ in members]
    if odd := [r for r in rollouts if len(r.logprobs) != len(r.response_ids)]:
        raise DataError(
            f"response {odd[0].sample} to {odd[0].prompt_id!r} has {len(odd[0].response_ids)} tokens and "
            f"{len(odd[0].logprobs)} log-probs"
        )
    starts = torch.tensor([len(r.prompt_ids) for r in rollouts])[:, None]
    ends = torch.tensor([len(r.prompt_ids) + len(r.response_ids) for r in rollouts])[:, None]
    width = padded_width(int(ends.max()), device)
    column = torch.arange(width)[None]
    is_real = column < ends
    is_response = is_real & (column >= starts)
    ids = _numbers("q", [ids for r in rollouts for ids in (r.prompt_ids, r.response_ids)])
    # Column t has the log-prob of token t itself, as all [B, T] do; prompts have 0.
    logprobs = _numbers("f", [r.logprobs for r in rollouts])
    return TrainBatch(
        input_ids=_filled(is_real, ids, pad_id).to(device),
        attention_mask=is_real.to(device, torch.int64),
        response_mask=is_response.to(device, torch.float32),
        rollout_logprobs=_filled(is_response, logprobs, 0.0).to(device),
        rewards=torch.tensor([reward for _, _, reward in members], dtype=torch.float32, device=device),
        group_ids=torch.tensor([g for g, _, _ in members], dtype=torch.int64, device=device),
        truncated=torch.tensor([r.finish_reason == "length" for r in rollouts], device=device),
        extras={"policy_version": torch.tensor([r.policy_version for r in rollouts], device=device)},
        recorded=recorded(rollouts, width),
    )


def micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Cut row indices into micro-batches of similar length, each of at most `max_tokens` tokens with its padding.

    Longest first, so that memory is at its peak at the start. A row longer than `max_tokens` is alone in its
    micro-batch. A micro-batch that is well filled ends early if the next row would be padded much.
    """
    # Ties by index, because every rank must cut alike.
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    batches: list[list[int]] = []
    longest = 0
    for i in order:
        tokens = len(batches[-1]) * longest if batches else 0
        is_full = tokens + longest > max_tokens
        is_padded = tokens >= FILLED * max_tokens and lengths[i] < ALIKE * longest
        if not batches or is_full or is_padded:
            batches.append([])
            longest = max(1, lengths[i])  # of the whole micro-batch: rows come longest first
        batches[-1].append(i)
    return batches


def packed_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Cut as `micro_batches` does, for rows without padding: at most `max_tokens` real tokens each, longest first."""
    batches: list[list[int]] = []
    tokens = 0
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if not batches or tokens + lengths[i] > max_tokens:
            batches.append([])
            tokens = 0
        batches[-1].append(i)
        tokens += lengths[i]
    return batches


def deal(
    lengths: Sequence[int], max_tokens: int, rank: int, size: int, packs: bool = False
) -> tuple[list[list[int]], int]:
    """Return one rank's micro-batches, and the number of idle ones that it adds to have as many as every other rank.

    Rows go longest first to the rank with the fewest tokens; every rank computes the same. `packs`: without padding.
    """
    owned: list[list[int]] = [[] for _ in range(size)]
    load = [0] * size
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        to = load.index(min(load))
        owned[to].append(i)
        load[to] += max(1, lengths[i])  # empty rows are spread too
    cut = packed_batches if packs else micro_batches
    pieces = [cut([lengths[i] for i in rows], max_tokens) for rows in owned]
    # A piece has indices among the rank's own rows; back to those of `lengths`.
    own = [[owned[rank][i] for i in piece] for piece in pieces[rank]]
    return own, max(map(len, pieces)) - len(own)


def untrained(batch: TrainBatch) -> TrainBatch:
    """Return an idle micro-batch, whose forward keeps in step with other ranks: one short row, nothing to train."""
    row = int(batch.attention_mask.sum(1).argmin())
    shortest = rows_of(batch, [row])
    # Nothing trains, so no token has a record of its sampling to repeat.
    return replace(shortest, response_mask=torch.zeros_like(shortest.response_mask), recorded=None)


def rows_of(batch: TrainBatch, rows: Sequence[int]) -> TrainBatch:
    """Return some rows of the batch, no wider than the longest of them is padded to on its device."""
    device = batch.input_ids.device
    at = torch.tensor(list(rows), dtype=torch.int64, device=device)
    width = padded_width(int(batch.attention_mask[at].sum(1).max()), device)
    return TrainBatch(
        input_ids=batch.input_ids[at, :width],
        attention_mask=batch.attention_mask[at, :width],
        response_mask=batch.response_mask[at, :width],
        rollout_logprobs=batch.rollout_logprobs[at, :width],
        rewards=batch.rewards[at],
        group_ids=batch.group_ids[at],
        truncated=batch.truncated[at],
        extras={k: v[at, :width] if v.dim() == 2 else v[at] for k, v in batch.extras.items()},  # [B, T] or [B]
        recorded=rows_recorded(batch.recorded, rows, width),
    )


def padded_ids(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device | str = "cpu") -> Tensor:
    """Return int64 [B, T], the rows padded on the right to the width of the longest on that device."""
    lengths = torch.tensor([len(r) for r in rows])[:, None]
    is_real = torch.arange(padded_width(int(lengths.max()), device))[None] < lengths
    return _filled(is_real, _numbers("q", rows), pad_id).to(device)


def _numbers(kind: Literal["q", "f"], rows: Sequence[Sequence[float]]) -> Tensor:
    """Return the numbers of all rows in one tensor: int64 for "q", float32 for "f".

    Through an array of the standard library, which reads numbers of Python several times faster than torch does.
    """
    flat = array(kind)
    for row in rows:
        flat.extend(row)  # type: ignore[arg-type]
    dtype = torch.int64 if kind == "q" else torch.float32
    return torch.frombuffer(flat, dtype=dtype) if flat else torch.zeros(0, dtype=dtype)


def _filled(where: Tensor, values: Tensor, fill: float) -> Tensor:
    """Return [B, T] with `values` at the True entries of `where`, row by row, and `fill` elsewhere."""
    return torch.full(where.shape, fill, dtype=values.dtype).masked_scatter_(where, values)
