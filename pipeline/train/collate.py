"""Make tensors of groups, with masks of the tokens that train; divide rows among ranks and micro-batches."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from verizero.pipeline.models.forward import Targets
from verizero.pipeline.models.widths import ALIKE, padded_width
from verizero.pipeline.rows import Span, TrainedRow, is_truncated, observed_spans, trained_rows
from verizero.pipeline.rows import rows as rows_of_rollout
from verizero.pipeline.train.replay import collate_records, records_of_rows
from verizero.pipeline.types import Group, Path, TrainBatch

MIN_FILLED_SHARE = 0.25
"""A micro-batch may end early, to avoid padding, once it has this share of its maximum of tokens."""
MIN_BRANCHES_PER_RANK = 2
"""With fewer branches of a tree per rank, they are divided among ranks, for balance."""


MemberIndex = tuple[int, int]
"""(index of the group, index of the member in it)."""


class Micro(NamedTuple):
    """A micro-batch of b rows, padded to t tokens."""

    rows: Tensor
    """int64 [b]: indices of its rows in the whole batch."""
    batch: TrainBatch
    targets: Targets
    """Indices of the tokens that train, and the layout of packed rows."""


def collate(
    groups: Sequence[Group], pad_id: int, device: torch.device | str = "cpu", observations: bool = False
) -> TrainBatch:
    """Return the members of `groups` that have a reward as one right-padded batch.

    Every sampled token trains in exactly one row, the end-of-sequence token included; observed tokens are not in
    `response_mask`. group_ids are indices of groups, episode_ids of members with a reward. The rows of an episode
    follow one another, in the order in which they began. `observations`: `extras` gets `observation_mask`, 1 on the
    tokens that answered the policy, each in one row. Every rank makes the same batch, except for records of sampling:
    each has those of its own rows.

    Raises: ValueError if no member has a reward; DataError for log-probs or records of sampling that do not fit their
    tokens; EngineError for an episode that no engine can have computed.
    """
    members = [(g, m) for g, x in enumerate(groups) for m in x.members if m.reward is not None]
    if not members:
        raise ValueError("no response has a reward; there is nothing to train on")
    rows_of_members = [trained_rows(m.rollout) for _, m in members]
    rows = [row for rows_of_member in rows_of_members for row in rows_of_member]
    member_of_row = [i for i, rows_of_member in enumerate(rows_of_members) for _ in rows_of_member]
    lengths = [row.num_tokens for row in rows]
    width = padded_width(max(lengths), device)
    attention_mask, response_mask = _masks(rows, lengths, width, device)
    ids, logprobs = _tokens(rows, lengths, width, pad_id)
    extras = {"policy_version": torch.tensor([row.policy_version for row in rows], device=device)}
    episode_ids = turn_ids = answer_spans = None
    if any(len(rows_of_member) > 1 or len(rows_of_member[0].turns) > 1 for rows_of_member in rows_of_members):
        episode_ids = torch.tensor(member_of_row, device=device)
        turn_ids = _by_span(rows, width, lambda span: span.number, -1).to(device)
        versions = _by_span(rows, width, lambda span: span.turn.policy_version, -1).to(device)
        extras["token_versions"] = torch.where(versions < 0, extras["policy_version"][:, None], versions)
    if any(m.steps for _, m in members):
        steps = [members[i][1].steps for i in member_of_row]
        turn_ids = _of_steps(rows, steps, width, turn_ids).to(device)
    if observations:
        observation_mask = torch.zeros(len(rows), width)
        answer_spans = tuple(
            tuple(spans) for rows_of_member in rows_of_members for spans in observed_spans(rows_of_member)
        )
        for i, spans in enumerate(answer_spans):
            for begin, end in spans:
                observation_mask[i, begin:end] = 1
        extras["observation_mask"] = observation_mask.to(device)
    return TrainBatch(
        input_ids=ids.to(device),
        attention_mask=attention_mask.to(torch.int64),
        response_mask=response_mask.to(torch.float32),
        rollout_logprobs=logprobs.to(device),
        rewards=torch.tensor([members[i][1].reward for i in member_of_row], dtype=torch.float64, device=device),
        group_ids=torch.tensor([members[i][0] for i in member_of_row], dtype=torch.int64, device=device),
        truncated=torch.tensor([is_truncated(members[i][1].rollout) for i in member_of_row], device=device),
        extras=extras,
        records=collate_records(rows, width, [members[i][1].rollout.recorded_by is None for i in member_of_row]),
        episode_ids=episode_ids,
        turn_ids=turn_ids,
        spans=tuple(tuple((s.start, s.stop) for s in row.spans) for row in rows),
        answers=answer_spans,
    )


def members_of_rows(groups: Sequence[Group]) -> list[tuple[MemberIndex, int]]:
    """Return the member and the length in tokens of each row that `collate` makes of the groups."""
    return [
        ((g, m), sum(len(turn.observed) + len(turn.sampled) for turn in row))
        for g, group in enumerate(groups)
        for m, member in enumerate(group.members)
        if member.reward is not None
        for row in rows_of_rollout(member.rollout)
    ]


def row_lengths(groups: Sequence[Group]) -> tuple[list[int], list[int]]:
    """Return the length in tokens of each row that `collate` makes of the groups, and the index of its group."""
    members = members_of_rows(groups)
    return [length for _, length in members], [group for (group, _), _ in members]


def turn_table(groups: Sequence[Group], device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Return the rewards (NaN: none) and numbers of the states (-1: none) of all members' turns or steps, both [E, K].

    Equal names of states are equal numbers within a group; the numbers of different groups differ.
    """
    numbers: dict[tuple[int, str], int] = {}
    rewards, states = [], []
    for g, group in enumerate(groups):
        for member in (m for m in group.members if m.reward is not None):
            rewards.append([math.nan if r is None else r for r in member.turn_rewards])
            keys = [None if t.state is None else (g, t.state) for t in member.rollout.turns]
            states.append([-1 if key is None else numbers.setdefault(key, len(numbers)) for key in keys])
    num = max(map(len, rewards))
    return (
        torch.tensor([r + [math.nan] * (num - len(r)) for r in rewards], dtype=torch.float64, device=device),
        torch.tensor([s + [-1] * (num - len(s)) for s in states], dtype=torch.int64, device=device),
    )


def _masks(
    rows: Sequence[TrainedRow], lengths: Sequence[int], width: int, device: torch.device | str
) -> tuple[Tensor, Tensor]:
    """Return two masks, bool [B, T]: of all tokens but padding, and of those that train."""
    columns = torch.arange(width, device=device)[None]
    not_padding = columns < torch.tensor(lengths, dtype=torch.int64, device=device)[:, None]
    # One response after its prompt, which is the most frequent case: without a loop over the rows.
    if all(len(row.turns) == len(row.spans) == 1 for row in rows):
        starts = torch.tensor([row.spans[0].start for row in rows], dtype=torch.int64, device=device)
        return not_padding, not_padding & (columns >= starts[:, None])
    return not_padding, _by_span(rows, width, lambda _: 1, 0).to(device) > 0


def _by_span(rows: Sequence[TrainedRow], width: int, value: Callable[[Span], int], fill: int) -> Tensor:
    """Return int64 [B, T] with the value of each span at its tokens, and `fill` elsewhere."""
    out_B_T = torch.full((len(rows), width), fill)
    for out_T, row in zip(out_B_T, rows, strict=True):
        for span in row.spans:
            out_T[span.start : span.stop] = value(span)
    return out_B_T


def _of_steps(
    rows: Sequence[TrainedRow], steps: Sequence[Sequence[tuple[int, float]]], width: int, turn_ids: Tensor | None
) -> Tensor:
    """Return int64 [B, T]: the number of each token's step in rows with steps; other rows as in `turn_ids`.

    A token is of the first step that ends with it or later. Without `turn_ids`, other rows are one turn each.
    """
    out_B_T = _by_span(rows, width, lambda span: span.number, -1) if turn_ids is None else turn_ids.cpu()
    for out_T, row, own in zip(out_B_T, rows, steps, strict=True):
        if own:
            (span,) = row.spans  # only a single response has steps
            ends = torch.tensor([end for end, _ in own])
            out_T[span.start : span.stop] = torch.searchsorted(ends, torch.arange(span.stop - span.start), right=True)
    return out_B_T


def _tokens(rows: Sequence[TrainedRow], lengths: Sequence[int], width: int, pad_id: int) -> tuple[Tensor, Tensor]:
    """Return ids and the engine's log-probs of trained tokens (0 elsewhere), [B, T] on the CPU.

    Column t has the log-prob of token t itself.
    """
    not_padding, trains = _masks(rows, lengths, width, "cpu")
    pieces = [piece for row in rows for piece in row.pieces]
    logprobs = _flat_tensor("f", [span.turn.logprobs for _, span in pieces if span is not None])
    ids = _flat_tensor("i", [ids for ids, _ in pieces]).to(torch.int64)
    return _filled(not_padding, ids, pad_id), _filled(trains, logprobs, 0.0)


def micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Divide rows, as indices, into micro-batches of similar length, each of at most `max_tokens` with padding.

    Longest rows first, so that memory is at its peak at the start. A row longer than `max_tokens` is alone in its
    micro-batch. One that has enough tokens ends early if the next row would get much padding.
    """
    # Ties by index, because every rank must divide alike.
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    batches: list[list[int]] = []
    longest = 0
    for i in order:
        tokens = len(batches[-1]) * longest if batches else 0
        is_full = tokens + longest > max_tokens
        is_padded = tokens >= MIN_FILLED_SHARE * max_tokens and lengths[i] < ALIKE * longest
        if not batches or is_full or is_padded:
            batches.append([])
            longest = max(1, lengths[i])  # of the whole micro-batch: rows come longest first
        batches[-1].append(i)
    return batches


def packed_batches(paths: Sequence[Path], max_tokens: int) -> list[list[int]]:
    """Divide rows into micro-batches without padding, each of which computes a run once for all its rows.

    Best fit: a row goes to the micro-batch where it adds the fewest tokens, of several to the fullest, if they fit. A
    run whose rows do not all fit is computed in several micro-batches.
    """
    batches: list[list[int]] = []
    free_tokens: list[int] = []
    runs_of_batches: list[set[int]] = []
    for i in in_tree_order(paths):
        sizes = sizes_of(paths[i])
        added_tokens = [sum(n for run, n in sizes.items() if run not in known) for known in runs_of_batches]
        fits = [b for b, free in enumerate(free_tokens) if added_tokens[b] <= free]
        if fits:
            b = min(fits, key=lambda b: (added_tokens[b], free_tokens[b], b))
        else:
            b = len(batches)
            batches.append([])
            free_tokens.append(max_tokens)
            runs_of_batches.append(set())
            added_tokens.append(paths[i][-1].end)
        batches[b].append(i)
        free_tokens[b] -= added_tokens[b]
        runs_of_batches[b].update(sizes)
    return batches


def sizes_of(*paths: Path) -> dict[int, int]:
    """Return the tokens of each run of these rows, by its number. Their sum is what the rows cost."""
    ends = ((path, [0, *(run.end for run in path)]) for path in paths)
    return {run.number: run.end - begin for path, begins in ends for run, begin in zip(path, begins, strict=False)}


def in_tree_order(paths: Sequence[Path]) -> list[int]:
    """Return the rows, as indices, in the order of a walk through their tree, where the longest row comes first."""
    first: dict[int, int] = {}
    # Ties by index, because every rank must divide alike.
    for i in sorted(range(len(paths)), key=lambda i: (-paths[i][-1].end, i)):
        for run in paths[i]:
            first.setdefault(run.number, i)
    lengths = [path[-1].end for path in paths]
    return sorted(
        range(len(paths)), key=lambda i: ([(-lengths[first[r.number]], first[r.number]) for r in paths[i]], i)
    )


def rows_of_ranks(lengths: Sequence[int], size: int, paths: Sequence[Path] | None = None) -> list[list[int]]:
    """Divide rows among `size` ranks: longest first, each to the rank with the fewest tokens so far.

    With `paths`, rows that begin with the same run go to the same rank; with those of the next level if they are few.
    """
    units = [[i] for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))]
    costs = [lengths[rows[0]] for rows in units]
    if paths is not None:
        units = _branches(paths, MIN_BRANCHES_PER_RANK * size)
        costs = [sum(sizes_of(*(paths[i] for i in rows)).values()) for rows in units]
    divided: list[list[int]] = [[] for _ in range(size)]
    load = [0] * size
    for cost, rows in sorted(zip(costs, units, strict=True), key=lambda unit: (-unit[0], unit[1][0])):
        rank = load.index(min(load))
        divided[rank] += rows
        load[rank] += max(1, cost)  # empty rows are divided too
    return divided


def _branches(paths: Sequence[Path], least: int) -> list[list[int]]:
    """Return the rows of each branch of the tree, cut at the first level where there are `least`, else at the last."""
    order, branches = in_tree_order(paths), dict[int, list[int]]()
    for level in range(max(map(len, paths), default=0)):
        branches = {}
        for i in order:
            branches.setdefault(paths[i][: level + 1][-1].number, []).append(i)
        if len(branches) >= least:
            break
    return list(branches.values())


def rank_micro_batches(
    lengths: Sequence[int], max_tokens: int, rank: int, size: int, paths: Sequence[Path] | None = None
) -> tuple[list[list[int]], int]:
    """Return one rank's micro-batches, and the number of idle ones to add, so that all ranks have as many.

    Every rank divides the rows alike, by `rows_of_ranks`. `paths`: rows are packed; None: they are padded.
    """
    batches_of_ranks = []
    for rows in rows_of_ranks(lengths, size, paths):
        if paths is None:
            batches = micro_batches([lengths[i] for i in rows], max_tokens)
        else:
            batches = packed_batches([paths[i] for i in rows], max_tokens)
        batches_of_ranks.append([[rows[k] for k in batch] for batch in batches])
    return batches_of_ranks[rank], max(map(len, batches_of_ranks)) - len(batches_of_ranks[rank])


def idle_micro_batch(batch: TrainBatch) -> TrainBatch:
    """Return an idle micro-batch: the shortest row, none of whose tokens trains.

    A rank computes it to keep in step with ranks that have more micro-batches.
    """
    row = int(batch.attention_mask.sum(1).argmin())
    shortest = rows_of(batch, [row])
    # No token trains, so none has a record of its sampling to replay.
    extras = {name: torch.zeros_like(x) if name == "observation_mask" else x for name, x in shortest.extras.items()}
    empty_mask = torch.zeros_like(shortest.response_mask)
    return replace(shortest, response_mask=empty_mask, extras=extras, records=None, spans=((),), answers=None)


def rows_of(
    batch: TrainBatch, rows: Sequence[int], indices: Tensor | None = None, width: int | None = None
) -> TrainBatch:
    """Return some rows of the batch, padded to the width of the longest of them on its device.

    `indices`, the same rows as a tensor on that device, and `width` avoid two waits of the host for a GPU.
    """
    device = batch.input_ids.device
    if indices is None:
        indices = torch.tensor(list(rows), dtype=torch.int64, device=device)
    if width is None:
        width = padded_width(int(batch.attention_mask[indices].sum(1).max()), device)
    whole = {"spans": batch.spans, "answers": batch.answers, "paths": batch.paths}
    of_rows: dict[str, Any] = {n: None if v is None else tuple(v[i] for i in rows) for n, v in whole.items()}
    return TrainBatch(
        input_ids=batch.input_ids[indices, :width],
        attention_mask=batch.attention_mask[indices, :width],
        response_mask=batch.response_mask[indices, :width],
        rollout_logprobs=batch.rollout_logprobs[indices, :width],
        rewards=batch.rewards[indices],
        group_ids=batch.group_ids[indices],
        truncated=batch.truncated[indices],
        extras={  # [B, T] or [B]
            name: x[indices, :width] if x.dim() == 2 else x[indices] for name, x in batch.extras.items()
        },
        records=records_of_rows(batch.records, rows, width),
        episode_ids=None if batch.episode_ids is None else batch.episode_ids[indices],
        turn_ids=None if batch.turn_ids is None else batch.turn_ids[indices, :width],
        **of_rows,
    )


def padded_ids(
    rows: Sequence[Sequence[int]], pad_id: int, device: torch.device | str = "cpu", width: int | None = None
) -> Tensor:
    """Return int64 [B, T], the rows padded on the right to `width`; None: the padded width of the longest row."""
    lengths = torch.tensor([len(r) for r in rows])[:, None]
    if width is None:
        width = padded_width(int(lengths.max()), device)
    not_padding = torch.arange(width)[None] < lengths
    return _filled(not_padding, _flat_tensor("i", rows).to(torch.int64), pad_id).to(device)


def _flat_tensor(kind: Literal["i", "f"], rows: Sequence[Sequence[float]]) -> Tensor:
    """Return the numbers of all rows in one tensor: int32 for "i", float32 for "f".

    By arrays of the standard library: they read Python's numbers several times faster than torch does.
    """
    flat = bytearray().join(_array(kind, row) for row in rows)
    dtype = torch.int32 if kind == "i" else torch.float32
    return torch.frombuffer(flat, dtype=dtype) if flat else torch.zeros(0, dtype=dtype)


def _array(kind: Literal["i", "f"], row: Sequence[float]) -> array[Any]:
    return row if isinstance(row, array) and row.typecode == kind else array(kind, row)


def _filled(mask: Tensor, values: Tensor, fill: float) -> Tensor:
    """Return [B, T] with `values` [N] at the True entries of `mask`, row by row, and `fill` elsewhere."""
    return torch.full(mask.shape, fill, dtype=values.dtype).masked_scatter_(mask, values)
