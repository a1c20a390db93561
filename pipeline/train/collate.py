"""Make tensors of groups, with masks of the tokens that train; divide rows among steps, ranks and micro-batches.

At the end: records of the sampling (kept sets, routes of experts) as tensors, and what a forward replays of them.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from verizero.pipeline.errors import DataError
from verizero.pipeline.models.forward import Replay, Targets
from verizero.pipeline.models.runs import ALIKE, Runs, moved, padded_width
from verizero.pipeline.rl.parts import PolicyParams
from verizero.pipeline.rows import Span, TrainedRow, is_truncated, trained_rows
from verizero.pipeline.seeds import stream
from verizero.pipeline.train.ranks import ALONE, Ranks
from verizero.pipeline.types import Group, Path, Run, SamplingRecords, TrainBatch

MIN_FILLED_SHARE = 0.25
"""A micro-batch may end early, to avoid padding, once it has this share of its maximum of tokens."""
MIN_BRANCHES_PER_RANK = 2
"""With fewer branches of a tree per rank, they are divided among ranks, for balance."""


class Micro(NamedTuple):
    """A micro-batch of b rows, padded to t tokens."""

    rows: Tensor
    """int64 [b]: indices of its rows in the whole batch."""
    batch: TrainBatch
    targets: Targets
    """Indices of the tokens that train, and the layout of packed rows."""


def collate(groups: Sequence[Group], pad_id: int, device: torch.device | str = "cpu") -> TrainBatch:
    """Return the members of `groups` that have a reward as one right-padded batch.

    Every sampled token trains in exactly one row, the end-of-sequence token included; observed tokens are not in
    `response_mask`. group_ids are indices of groups, episode_ids of members with a reward. The rows of an episode
    follow one another, in the order in which they began. Every rank makes the same batch.

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
    episode_ids = turn_ids = None
    if any(len(rows_of_member) > 1 or len(rows_of_member[0].turns) > 1 for rows_of_member in rows_of_members):
        episode_ids = torch.tensor(member_of_row, device=device)
        turn_ids = _by_span(rows, width, lambda span: span.number, -1).to(device)
    if any(m.steps for _, m in members):
        steps = [members[i][1].steps for i in member_of_row]
        turn_ids = _of_steps(rows, steps, width, turn_ids).to(device)
    return TrainBatch(
        input_ids=ids.to(device),
        attention_mask=attention_mask.to(torch.int64),
        response_mask=response_mask.to(torch.float32),
        rollout_logprobs=logprobs.to(device),
        rewards=torch.tensor([members[i][1].reward for i in member_of_row], dtype=torch.float64, device=device),
        group_ids=torch.tensor([members[i][0] for i in member_of_row], dtype=torch.int64, device=device),
        truncated=torch.tensor([is_truncated(members[i][1].rollout) for i in member_of_row], device=device),
        extras=extras,
        records=collate_records(rows, width),
        episode_ids=episode_ids,
        turn_ids=turn_ids,
        spans=tuple(tuple((s.start, s.stop) for s in row.spans) for row in rows),
    )


def turn_table(groups: Sequence[Group], device: torch.device | str = "cpu") -> Tensor:
    """Return the rewards [E, K] of all members' turns or steps; NaN: none."""
    rewards = [
        [math.nan if r is None else r for r in member.turn_rewards]
        for group in groups
        for member in group.members
        if member.reward is not None
    ]
    num = max(map(len, rewards))
    return torch.tensor([r + [math.nan] * (num - len(r)) for r in rewards], dtype=torch.float64, device=device)


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
    """Return ids and the engine's log-probs of trained tokens (0 elsewhere), [B, T] on the CPU, each in its column."""
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
    return replace(shortest, response_mask=torch.zeros_like(shortest.response_mask), records=None, spans=((),))


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
    whole = {"spans": batch.spans, "paths": batch.paths}
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


def minibatches(params: PolicyParams, group_of: Sequence[int], seed: int, step: int) -> Iterator[list[int]]:
    """Yield the rows of each optimiser step, as indices. `group_of`: the group of each row."""
    groups: dict[int, list[int]] = {}
    for row, group in enumerate(group_of):
        groups.setdefault(group, []).append(row)
    order = list(groups)
    num = min(params.num_minibatches, len(order))
    for epoch in range(params.num_epochs):
        if num > 1:
            stream(seed, "minibatches", step, epoch).shuffle(order)
        for i in range(num):
            # By strides, so that minibatches differ by one group at most.
            yield [row for group in order[i::num] for row in groups[group]]


def micros_of(batch: TrainBatch, rows: Sequence[int], max_tokens: int, ranks: Ranks = ALONE) -> list[Micro]:
    """Return this rank's micro-batches of those rows. All ranks have as many: the last ones of some are idle."""
    costs = row_costs(batch)
    paths = None if batch.paths is None else [batch.paths[i] for i in rows]
    if paths is not None and batch.is_routed:  # which tokens of a run are computed once depends on their experts
        paths = [(Run(i, path[-1].end),) for i, path in enumerate(paths)]
    pieces, num_idle = rank_micro_batches([costs[i] for i in rows], max_tokens, ranks.rank, ranks.size, paths)
    micros = micros_at(batch, [[rows[i] for i in piece] for piece in pieces], costs, max_tokens)
    row_0 = torch.zeros(1, dtype=torch.int64, device=batch.rewards.device)  # any row: none of its tokens trains
    idle = [Micro(row_0, idle_micro_batch(batch), Targets(row_0[:0]))] if num_idle else []
    return [*micros, *idle * num_idle]


def micros_at(batch: TrainBatch, pieces: Sequence[Sequence[int]], costs: Sequence[int], max_tokens: int) -> list[Micro]:
    """Make one micro-batch of each list of rows. `max_tokens`: the limit of their tokens.

    `costs`: `row_costs` of all rows, for which the host waits once.
    """
    assert batch.spans is not None
    device, widths, targets_of_micros = batch.rewards.device, [], []
    for rows in pieces:
        widths.append(padded_width(max(costs[i] for i in rows), device))
        trained_spans = [batch.spans[i] for i in rows]
        paths = _paths_at(batch, rows, widths[-1])
        runs = None if paths is None else Runs.of(paths, widths[-1], most=max_tokens, device=device)
        targets_of_micros.append(Targets(span_indices(trained_spans, widths[-1]), runs))
    # One copy to the device for all tensors, because the host waits for each copy.
    row_indices = [torch.tensor(rows, dtype=torch.int64) for rows in pieces]
    on_device = moved([*row_indices, *(t for targets in targets_of_micros for t in targets.tensors())], device)
    row_indices = [next(on_device) for _ in pieces]
    batches = [rows_of(batch, *part) for part in zip(pieces, row_indices, widths, strict=True)]
    return [*map(Micro, row_indices, batches, (targets.with_tensors(on_device) for targets in targets_of_micros))]


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
