"""Groups to tensors: the choice of the tokens that train, and the cut of rows into micro-batches."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from verizero.pipeline.models.forward import Targets
from verizero.pipeline.models.widths import ALIKE, padded_width
from verizero.pipeline.rows import Span, TrainedRow, is_truncated, observed_spans, trained_rows
from verizero.pipeline.rows import rows as rows_of_rollout
from verizero.pipeline.train.replay import recorded, rows_recorded
from verizero.pipeline.types import Group, PromptOf, TrainBatch

FILLED = 0.25
"""A micro-batch that holds this share of the tokens that it may hold is worth its own forward and backward."""
MIN_PROMPTS = 2
"""With fewer prompts than this for each rank, rows with equal prompts are divided among ranks, to give all as much."""


Place = tuple[int, int]
"""A response among groups: number of the group, number of the member in it."""


class Micro(NamedTuple):
    """A micro-batch."""

    rows: Tensor
    """int64 [b]: its rows in the whole batch."""
    batch: TrainBatch
    targets: Targets
    """The tokens that train, and how rows are packed."""


def collate(
    groups: Sequence[Group], pad_id: int, device: torch.device | str = "cpu", observations: bool = False
) -> TrainBatch:
    """Return the members of `groups` that have a reward as one right-padded batch; group_ids count the groups.

    Every sampled token trains in one row, the end-of-sequence token included; what was observed is not in
    `response_mask`. The rows of an episode follow one another, in the order in which they began; episode_ids count the
    members. `observations`: `extras` has `observation_mask`, 1 on the tokens that answered the policy, each in one row.
    Every rank makes the same batch, but for records of sampling: each has those of its own rows.

    Raises: ValueError if no member has a reward; DataError for log-probs or records of sampling that do not fit their
    tokens; EngineError for an episode that no engine can have computed.
    """
    members = [(g, m.rollout, m.reward) for g, x in enumerate(groups) for m in x.members if m.reward is not None]
    if not members:
        raise ValueError("no response has a reward; there is nothing to train on")
    of_members = [trained_rows(r) for _, r, _ in members]
    rows = [row for own in of_members for row in own]
    owner = [i for i, own in enumerate(of_members) for _ in own]  # the member of each row
    lengths = [row.num_tokens for row in rows]
    width = padded_width(max(lengths), device)
    real, trains = _masks(rows, lengths, width, device)
    ids, logprobs = _tokens(rows, lengths, width, pad_id)
    extras = {"policy_version": torch.tensor([row.policy_version for row in rows], device=device)}
    episode_ids = turn_ids = answered = None
    if any(len(own) > 1 or len(own[0].turns) > 1 for own in of_members):
        episode_ids = torch.tensor(owner, device=device)
        turn_ids = _by_piece(rows, width, lambda span: span.number, -1).to(device)
        versions = _by_piece(rows, width, lambda span: span.turn.policy_version, -1).to(device)
        extras["token_versions"] = torch.where(versions < 0, extras["policy_version"][:, None], versions)
    if observations:
        answers = torch.zeros(len(rows), width)
        answered = tuple(tuple(spans) for own in of_members for spans in observed_spans(own))
        for i, spans in enumerate(answered):
            for begin, end in spans:
                answers[i, begin:end] = 1
        extras["observation_mask"] = answers.to(device)
    return TrainBatch(
        input_ids=ids.to(device),
        attention_mask=real.to(torch.int64),
        response_mask=trains.to(torch.float32),
        rollout_logprobs=logprobs.to(device),
        rewards=torch.tensor([members[i][2] for i in owner], dtype=torch.float64, device=device),
        group_ids=torch.tensor([members[i][0] for i in owner], dtype=torch.int64, device=device),
        truncated=torch.tensor([is_truncated(members[i][1]) for i in owner], device=device),
        extras=extras,
        recorded=recorded(rows, width, [members[o][1].recorded_by is None for o in owner]),
        episode_ids=episode_ids,
        turn_ids=turn_ids,
        spans=tuple(tuple((s.start, s.stop) for s in row.spans) for row in rows),
        answers=answered,
    )


def placed_rows(groups: Sequence[Group]) -> list[tuple[Place, int]]:
    """Return the response and the length of each row that `collate` makes of the groups."""
    return [
        ((g, m), sum(len(turn.observed) + len(turn.sampled) for turn in row))
        for g, group in enumerate(groups)
        for m, member in enumerate(group.members)
        if member.reward is not None
        for row in rows_of_rollout(member.rollout)
    ]


def row_lengths(groups: Sequence[Group]) -> tuple[list[int], list[int]]:
    """Return the length of each row that `collate` makes of the groups, and the number of its group."""
    placed = placed_rows(groups)
    return [length for _, length in placed], [group for (group, _), _ in placed]


def turn_table(groups: Sequence[Group], device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Return the rewards (NaN: none) and the numbered states (-1: none) of the turns of all members, both [E, K].

    Equal names of states are equal numbers within a group; the numbers of different groups differ.
    """
    numbers: dict[tuple[int, str], int] = {}
    rewards, states = [], []
    for g, group in enumerate(groups):
        for turns in (m.rollout.turns for m in group.members if m.reward is not None):
            rewards.append([math.nan if t.reward is None else t.reward for t in turns])
            keys = [None if t.state is None else (g, t.state) for t in turns]
            states.append([-1 if key is None else numbers.setdefault(key, len(numbers)) for key in keys])
    num = max(map(len, rewards))
    return (
        torch.tensor([r + [math.nan] * (num - len(r)) for r in rewards], dtype=torch.float64, device=device),
        torch.tensor([s + [-1] * (num - len(s)) for s in states], dtype=torch.int64, device=device),
    )


def _masks(
    rows: Sequence[TrainedRow], lengths: Sequence[int], width: int, device: torch.device | str
) -> tuple[Tensor, Tensor]:
    """Return bool [B, T] twice: the tokens of the rows, and those of them that train."""
    columns = torch.arange(width, device=device)[None]
    real = columns < torch.tensor(lengths, dtype=torch.int64, device=device)[:, None]
    if all(len(row.turns) == len(row.spans) == 1 for row in rows):  # the response after its prompt
        starts = torch.tensor([row.spans[0].start for row in rows], dtype=torch.int64, device=device)
        return real, real & (columns >= starts[:, None])
    return real, _by_piece(rows, width, lambda _: 1, 0).to(device) > 0


def _by_piece(rows: Sequence[TrainedRow], width: int, value: Callable[[Span], int], fill: int) -> Tensor:
    """Return int64 [B, T] with the value of each span at its tokens, and `fill` elsewhere."""
    out = torch.full((len(rows), width), fill)
    for row, own in zip(out, rows, strict=True):
        for span in own.spans:
            row[span.start : span.stop] = value(span)
    return out


def _tokens(rows: Sequence[TrainedRow], lengths: Sequence[int], width: int, pad_id: int) -> tuple[Tensor, Tensor]:
    """Return ids and log-probs, [B, T] on the CPU. Column t has the log-prob of token t itself; 0 where none trains."""
    real, trains = _masks(rows, lengths, width, "cpu")
    pieces = [piece for row in rows for piece in row.pieces]
    logprobs = _numbers("f", [span.turn.logprobs for _, span in pieces if span is not None])
    ids = _numbers("i", [ids for ids, _ in pieces]).to(torch.int64)
    return _filled(real, ids, pad_id), _filled(trains, logprobs, 0.0)


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


def packed_batches(lengths: Sequence[int], prompts: Sequence[PromptOf], max_tokens: int) -> list[list[int]]:
    """Cut as `micro_batches` does, where a micro-batch has no padding and computes each prompt once.

    Each is as full as can be: a row goes to the fullest micro-batch that has its prompt and room for it, else to the
    fullest that has room. A prompt whose rows do not all fit is computed in several micro-batches.
    """
    batches: list[list[int]] = []
    room: list[int] = []
    holds: list[set[int]] = []
    for i in (i for rows in by_prompt(range(len(lengths)), lengths, prompts) for i in rows):
        number, size, _ = prompts[i]
        added = [lengths[i] - (size if number in held else 0) for held in holds]
        fits = [b for b, free in enumerate(room) if added[b] <= free]
        if fits:
            b = min(fits, key=lambda b: (added[b], room[b], b))
        else:
            b = len(batches)
            batches.append([])
            room.append(max_tokens)
            holds.append(set())
            added.append(lengths[i])
        batches[b].append(i)
        room[b] -= added[b]
        holds[b].add(number)
    return batches


def by_prompt(rows: Iterable[int], lengths: Sequence[int], prompts: Sequence[PromptOf]) -> list[list[int]]:
    """Return the rows with equal prompts together, longest first, of the prompt with the longest row first."""
    together: dict[int, list[int]] = {}
    for i in sorted(rows, key=lambda i: (-lengths[i], i)):
        together.setdefault(prompts[i].number, []).append(i)
    return list(together.values())


def owners(lengths: Sequence[int], size: int, prompts: Sequence[PromptOf] | None = None) -> list[list[int]]:
    """Return the rows of each of `size` ranks: longest first, each row to the rank with the fewest tokens.

    With `prompts`, rows with equal ones go to the same rank, if there are enough prompts to divide.
    """
    parts = [[i] for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))]
    if prompts is not None:
        together = by_prompt(range(len(lengths)), lengths, prompts)
        if len(together) >= MIN_PROMPTS * size:
            parts = sorted(together, key=lambda rows: (-_cost(rows, lengths, prompts), rows[0]))
    owned: list[list[int]] = [[] for _ in range(size)]
    load = [0] * size
    for rows in parts:
        to = load.index(min(load))
        owned[to] += rows
        load[to] += max(1, _cost(rows, lengths, prompts))  # empty rows are spread too
    return owned


def _cost(rows: Sequence[int], lengths: Sequence[int], prompts: Sequence[PromptOf] | None) -> int:
    """Return the number of tokens that are computed for rows with equal prompts."""
    twice = 0 if prompts is None else (len(rows) - 1) * prompts[rows[0]].tokens
    return sum(lengths[i] for i in rows) - twice


def deal(
    lengths: Sequence[int], max_tokens: int, rank: int, size: int, prompts: Sequence[PromptOf] | None = None
) -> tuple[list[list[int]], int]:
    """Return one rank's micro-batches, and the number of idle ones that it adds to have as many as every other rank.

    The rows are those of `owners`, so every rank computes the same. `prompts`: rows are packed; None: they are padded.
    """
    pieces = []
    for rows in owners(lengths, size, prompts):
        own = [lengths[i] for i in rows]
        cut = (
            micro_batches(own, max_tokens)
            if prompts is None
            else packed_batches(own, [prompts[i] for i in rows], max_tokens)
        )
        pieces.append([[rows[k] for k in piece] for piece in cut])
    return pieces[rank], max(map(len, pieces)) - len(pieces[rank])


def untrained(batch: TrainBatch) -> TrainBatch:
    """Return an idle micro-batch, whose forward keeps in step with other ranks: one short row, nothing to train."""
    row = int(batch.attention_mask.sum(1).argmin())
    shortest = rows_of(batch, [row])
    # Nothing trains, so no token has a record of its sampling to repeat.
    extras = {name: torch.zeros_like(x) if name == "observation_mask" else x for name, x in shortest.extras.items()}
    nothing = torch.zeros_like(shortest.response_mask)
    return replace(shortest, response_mask=nothing, extras=extras, recorded=None, spans=((),), answers=None)


def rows_of(batch: TrainBatch, rows: Sequence[int], at: Tensor | None = None, width: int | None = None) -> TrainBatch:
    """Return some rows of the batch, no wider than the longest of them is padded to on its device.

    `at`, the same rows as a tensor on that device, and `width` spare the host two waits for a GPU.
    """
    device = batch.input_ids.device
    if at is None:
        at = torch.tensor(list(rows), dtype=torch.int64, device=device)
    if width is None:
        width = padded_width(int(batch.attention_mask[at].sum(1).max()), device)
    of_rows: dict[str, Any] = {"spans": batch.spans, "answers": batch.answers, "prompts": batch.prompts}
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
        episode_ids=None if batch.episode_ids is None else batch.episode_ids[at],
        turn_ids=None if batch.turn_ids is None else batch.turn_ids[at, :width],
        **{name: own and tuple(own[i] for i in rows) for name, own in of_rows.items()},
    )


def padded_ids(
    rows: Sequence[Sequence[int]], pad_id: int, device: torch.device | str = "cpu", width: int | None = None
) -> Tensor:
    """Return int64 [B, T], the rows padded on the right to `width`; None: that of the longest on the device."""
    lengths = torch.tensor([len(r) for r in rows])[:, None]
    if width is None:
        width = padded_width(int(lengths.max()), device)
    is_real = torch.arange(width)[None] < lengths
    return _filled(is_real, _numbers("i", rows).to(torch.int64), pad_id).to(device)


def _numbers(kind: Literal["i", "f"], rows: Sequence[Sequence[float]]) -> Tensor:
    """Return the numbers of all rows in one tensor: int32 for "i", float32 for "f".

    Through arrays of the standard library, which are copied as they lie in memory, and read numbers of Python several
    times faster than torch does.
    """
    flat = bytearray().join(_array(kind, row) for row in rows)
    dtype = torch.int32 if kind == "i" else torch.float32
    return torch.frombuffer(flat, dtype=dtype) if flat else torch.zeros(0, dtype=dtype)


def _array(kind: Literal["i", "f"], row: Sequence[float]) -> array[Any]:
    return row if isinstance(row, array) and row.typecode == kind else array(kind, row)


def _filled(where: Tensor, values: Tensor, fill: float) -> Tensor:
    """Return [B, T] with `values` at the True entries of `where`, row by row, and `fill` elsewhere."""
    return torch.full(where.shape, fill, dtype=values.dtype).masked_scatter_(where, values)
