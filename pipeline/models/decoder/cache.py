"""The key/value cache of a decode: slots that rows take and leave, and prompts that rows share.

Each row has columns of its own, filled from column 0 on, and its own number of them: rows of different ages lie side by
side, and a slot that a row has left takes another. The keys and values of a prompt are either in the first own columns
of each of its rows, or once in a place that all its rows read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

SHARED_TOKENS = 256
"""On the CPU a prompt is shared if its tokens times its rows are at least this many: reading it once costs more copies
of small tensors than it saves for fewer. One thread, a layer's attention in microseconds, copied and shared, of 64 rows
with 8 to a prompt: 16 tokens 98 and 215; 64 tokens 434 and 458 (256 rows: 3,831 and 1,866; heads of 64 numbers: 4,066
and 2,046); 256 tokens 1,359 and 940; 1,024 tokens, heads of 64 numbers, 26,632 and 17,169."""


@dataclass(frozen=True, slots=True)
class Room:
    """Sizes of a cache."""

    rows: int
    columns: int
    """Own columns of a row."""
    prompts: int = 0
    """Prompts that are shared; 0: none is, and each row has its prompt in its own columns."""
    prompt_columns: int = 0


def room_of(lengths: Sequence[int], repeats: Sequence[int], most: int, max_new_tokens: int, gpu: bool) -> Room:
    """Return the room for prompts of those lengths with that many rows each, of which at most `most` rows at a time.

    Prompts are shared where that is faster: on a GPU wherever there are two rows to a prompt, on the CPU by
    SHARED_TOKENS. Prompts with far fewer rows than the largest group are not: a product has room for as many of each.
    """
    total, longest = sum(repeats), max(lengths, default=0)
    rows, prompts, largest = min(most, total), len(lengths), max(repeats, default=0)
    is_worth = gpu or longest * total >= SHARED_TOKENS * prompts
    if not (total >= 2 * prompts and is_worth and (gpu or prompts * largest <= 2 * total)):
        return Room(rows, longest + max_new_tokens)
    # Twice as many as rows can have on average: a prompt stays until its last row has ended.
    held = min(2 * -(-rows * prompts // total) + 1, prompts * -(-largest // max(1, rows // 4)))
    return Room(rows, max_new_tokens, max(1, held), longest)


def hiding(hidden: Tensor, keys: Tensor) -> Tensor:
    """Return what is added to scores, [B kv, 1, T]: the least number of the type of `keys` where hidden [B, T]."""
    bias = torch.zeros(hidden.shape, dtype=keys.dtype, device=keys.device)
    bias.masked_fill_(hidden, torch.finfo(keys.dtype).min)
    return bias[:, None, None].expand(-1, keys.shape[2], 1, -1).reshape(-1, 1, hidden.shape[1])


class Shared:
    """Keys and values [L, G, kv, P, d] of prompts, and the rows that read each."""

    def __init__(self, keys: Tensor, values: Tensor, rows: int) -> None:
        device = keys.device
        self.keys, self.values = keys, values
        self.lengths = torch.zeros(keys.shape[1], dtype=torch.int64, device=device)
        """int64 [G]: tokens of each prompt."""
        self.of_row = torch.zeros(rows, dtype=torch.int64, device=device)
        """int64 [rows]: the prompt of each row."""
        self.readers: list[int] = [-1] * rows
        """The prompt of each row as the host knows it; -1: none."""
        self._longest = [0] * keys.shape[1]
        self.used = 0
        """The prompts that a product computes with: up to the last one that has a row."""
        self.wide = 0
        """The most rows of a prompt."""
        self.columns = 0
        """The columns of the longest prompt in use."""
        self.table = self.place = torch.empty(0, dtype=torch.int64, device=device)
        """table int64 [used wide]: the rows of each prompt, filled up with row 0; place [rows]: where each row is."""
        self.bias: Tensor | None = None

    def free(self) -> list[int]:
        """Return the prompts that no row reads."""
        taken = set(self.readers)
        return [g for g in range(len(self._longest)) if g not in taken]

    def take(self, prompts: Sequence[int], lengths: Sequence[int]) -> None:
        """Note the lengths of new prompts."""
        for g, n in zip(prompts, lengths, strict=True):
            self._longest[g] = n
        self.lengths.copy_(torch.tensor(self._longest, device=self.lengths.device))

    def arrange(self, rows: int) -> None:
        """Note which rows read which prompt, of the first `rows` rows, after a change of `readers`."""
        device = self.lengths.device
        self.of_row.copy_(torch.tensor([max(0, g) for g in self.readers], device=device))
        members: list[list[int]] = [[] for _ in self._longest]
        for row, g in enumerate(self.readers[:rows]):
            if g >= 0:
                members[g].append(row)
        self.used = max((g + 1 for g, own in enumerate(members) if own), default=0)
        self.wide = max(map(len, members), default=0)
        place = [0] * rows
        for g, own in enumerate(members[: self.used]):
            for i, row in enumerate(own):
                place[row] = g * self.wide + i
        table = [row for own in members[: self.used] for row in own + [0] * (self.wide - len(own))]
        self.table, self.place = (torch.tensor(x, dtype=torch.int64, device=device) for x in (table, place))
        self.columns = max(self._longest[: self.used], default=0)
        hidden = torch.arange(self.columns, device=device)[None] >= self.lengths[: self.used, None]
        self.bias = hiding(hidden, self.keys)

    def scores(self, layer: int, q: Tensor) -> Tensor:
        """Return scores [B, heads, P] of scaled queries [B, kv, group, d]: one product for all rows of a prompt."""
        (b, kv, group, d), n = q.shape, self.wide
        keys = self.keys[layer, : self.used, :, : self.columns].flatten(0, 1).mT
        assert self.bias is not None
        scores = torch.baddbmm(self.bias, self._together(q.reshape(b, -1), (n, kv, group, d)), keys)
        return self._apart(scores, (kv, n, group, self.columns)).view(b, kv * group, -1)

    def weighed(self, layer: int, weights: Tensor, kv: int) -> Tensor:
        """Return the sums of values [B, heads, d] by weights [B, heads, P]."""
        (b, heads, p), n, group = weights.shape, self.wide, weights.shape[1] // kv
        values = self.values[layer, : self.used, :, :p].flatten(0, 1)
        together = self._together(weights.reshape(b, -1), (n, kv, group, p))
        out = torch.bmm(together, values)
        return self._apart(out, (kv, n, group, values.shape[2])).view(b, heads, -1)

    def _together(self, by_row: Tensor, sizes: tuple[int, int, int, int]) -> Tensor:
        """Return [used kv, wide group, x] of [B, kv group x]: the rows of each prompt one after another."""
        n, kv, group, x = sizes
        rows = by_row.index_select(0, self.table).view(self.used, n, kv, group, x)
        return rows.transpose(1, 2).reshape(self.used * kv, n * group, x)

    def _apart(self, by_prompt: Tensor, sizes: tuple[int, int, int, int]) -> Tensor:
        """Return [B, kv group x] of [used kv, wide group, x]: the inverse."""
        kv, n, group, x = sizes
        rows = by_prompt.view(self.used, kv, n, group, x).transpose(1, 2).reshape(self.used * n, -1)
        return rows.index_select(0, self.place)


class Cache:
    """Keys and values [L, S, kv, T, d] of S slots; a row is a slot among the first `rows`."""

    def __init__(self, keys: Tensor, values: Tensor, shared: Shared | None = None, align: int = 1) -> None:
        (_, slots, kv, room, _), device = keys.shape, keys.device
        self.keys, self.values = keys, values
        self.shared = shared
        self.align = align
        self.rows = 0
        self.lengths = torch.zeros(slots, dtype=torch.int64, device=device)
        """int64 [S]: own columns in use."""
        self.columns = torch.arange(room, device=device)
        self._firsts = (torch.arange(slots * kv, device=device) * room).view(slots, kv)
        """int64 [S, kv]: the place of a row's first column among all keys of a layer."""
        self.steps = 0
        self._begun: list[int | None] = [None] * slots
        """Own columns of each row less the steps taken, as the host knows them; None: a slot without a row."""
        self._shortest = self._longest = 0

    @property
    def places(self) -> int:
        """The number of prompts that can be added now, if all have rows; a large number where none is shared."""
        return len(self._begun) if self.shared is None else len(self.shared.free())

    def admit(self, lengths: Sequence[int], repeats: Sequence[int], slots: Sequence[int]) -> list[int]:
        """Give slots to the rows of prompts of those lengths; return the places of the prompts if they are shared."""
        owners = [i for i, n in enumerate(repeats) for _ in range(n)]
        places: list[int] = []
        if self.shared is not None:
            places = self.shared.free()[: len(lengths)]
            self.shared.take(places, lengths)
        for slot, i in zip(slots, owners, strict=True):
            self._begun[slot] = (0 if self.shared is not None else lengths[i]) - self.steps
            if self.shared is not None:
                self.shared.readers[slot] = places[i]
        own = [0 if self.shared is not None else lengths[i] for i in owners]
        device = self.lengths.device
        self.lengths.index_copy_(0, torch.tensor(slots, device=device), torch.tensor(own, device=device))
        self.resize(max(self.rows, max(slots) + 1))
        return places

    def leave(self, slots: Sequence[int]) -> None:
        """Note that rows have ended: their slots and prompts are free."""
        for slot in slots:
            self._begun[slot] = None
            if self.shared is not None:
                self.shared.readers[slot] = -1

    @torch.inference_mode()
    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Move rows to slots that are free."""
        if not sources:
            return
        for a, b in zip(sources, targets, strict=True):
            self._begun[b], self._begun[a] = self._begun[a], None
            if self.shared is not None:
                self.shared.readers[b], self.shared.readers[a] = self.shared.readers[a], -1
        used = max(1, self._longest)
        left, taken = (torch.tensor(x, device=self.lengths.device) for x in (sources, targets))
        # Layer by layer: a copy of all layers at once would need room for all.
        for keys, values in zip(self.keys, self.values, strict=True):
            for held in (keys, values):
                held[:, :, :used].index_copy_(0, taken, held[:, :, :used].index_select(0, left))
        self.lengths.index_copy_(0, taken, self.lengths.index_select(0, left))

    def resize(self, rows: int) -> None:
        """Compute with the first `rows` slots from now on; call it after rows have come, gone or moved."""
        self.rows = rows
        begun = [x + self.steps for x in self._begun if x is not None] or [0]
        self._shortest, self._longest = min(begun), max(begun)
        if self.shared is not None:
            self.shared.arrange(rows)

    def open_column(self) -> int:
        """Return the number of own columns that the next step attends to, with the column that it writes."""
        self.steps += 1
        self._shortest, self._longest = self._shortest + 1, self._longest + 1
        return min(self.keys.shape[3], -(-self._longest // self.align) * self.align)

    @property
    def is_even(self) -> bool:
        """True if all rows have the same number of own columns."""
        return self._shortest == self._longest

    def positions(self) -> Tensor:
        """Return the position int64 [rows] of each row's next token."""
        own = self.lengths[: self.rows]
        if self.shared is None:
            return own
        return own + self.shared.lengths.index_select(0, self.shared.of_row[: self.rows])

    def spread_bias(self, upto: int) -> Tensor | None:
        """Return what is added to the scores of each key head, [B kv, 1, upto]: of hidden columns, the least number."""
        if self.is_even and upto == self._longest:
            return None
        hidden = self.columns[None, :upto] > self.lengths[: self.rows, None]
        return hiding(hidden, self.keys)

    def next_places(self) -> Tensor | None:
        """Return int64 [B kv]: where `write` puts each row's next key and value; None: all of them in one column."""
        if self.is_even:
            return None
        return (self._firsts[: self.rows] + self.lengths[: self.rows, None]).flatten()

    def write(self, layer: int, k: Tensor, v: Tensor, places: Tensor | None) -> None:
        """Put a key and a value [B, kv, d] into each row's next column."""
        for held, new in ((self.keys, k), (self.values, v)):
            if places is None:  # faster than by places
                held[layer, : self.rows, :, self._longest - 1].copy_(new)
                continue
            held[layer].view(-1, held.shape[4]).index_copy_(0, places, new.reshape(-1, held.shape[4]))

    def close_column(self) -> None:
        """Count the column written. A row that has ended and was not yet taken out stays at the last one."""
        self.lengths[: self.rows].add_(1).clamp_(max=self.keys.shape[3] - 1)

    def attend(self, layer: int, q: Tensor, bias: Tensor | None, upto: int) -> Tensor:
        """Return attention [B, heads d] of q [B, heads, d] over prompt and `upto` columns; bias of `spread_bias`."""
        (b, heads, d), kv = q.shape, self.keys.shape[2]
        # Heads that share keys become query rows, so the cache is read once.
        q = q.reshape(b * kv, heads // kv, d) * (d**-0.5)
        keys, values = (held[layer, :b].view(b * kv, -1, d)[:, :upto] for held in (self.keys, self.values))
        keys = keys.mT
        scores = torch.bmm(q, keys) if bias is None else torch.baddbmm(bias, q, keys)
        if self.shared is None:
            return torch.bmm(scores.softmax(-1), values).view(b, -1)
        before = self.shared.scores(layer, q.view(b, kv, heads // kv, d))
        width = before.shape[2]
        weights = torch.cat([before, scores.view(b, heads, upto)], 2).softmax(-1)
        out = self.shared.weighed(layer, weights[:, :, :width], kv)
        rest = weights[:, :, width:].reshape(b * kv, heads // kv, upto)
        return out.flatten(1).add_(torch.bmm(rest, values).view(b, -1))
