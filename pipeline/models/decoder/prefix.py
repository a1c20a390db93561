"""A prefix cache: keys and values of token sequences, kept from one turn of an episode to the next.

The sequences are a trie, in which each token has a place. So a turn computes only the tokens that no sequence before it
had, a row that begins with a fork only those behind the fork, and prompts that begin alike compute that once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import torch
from torch import Tensor
from torch.nn import functional as F

from verizero.pipeline.models.decoder.cache import Cache

ROOT = -1
"""The place before the first token of each sequence."""


@dataclass(frozen=True, slots=True)
class Path:
    """The place of each token of a sequence."""

    ids: Sequence[int]
    places: list[int]
    num_held: int
    """Number of first tokens whose keys an earlier sequence has computed."""

    @property
    def begin(self) -> int:
        """The first token to compute: the last one always is, for what follows it."""
        return min(self.num_held, len(self.ids) - 1)


class PrefixCache:
    """Keys and values [L, N, kv, d] of N tokens.

    It holds at most as many tokens as the largest cache of slots that it was used with, so both together take at most
    twice the memory of that. If it is full, it drops the sequences that were used longest ago.
    """

    def __init__(self, empty: Tensor) -> None:
        """`empty`: a tensor [L, 0, kv, d]."""
        self.keys, self.values = empty, empty
        self._next: dict[tuple[int, int], int] = {}
        """(place of a token, the token after it) -> the place of that."""
        self._used: list[int] = []
        """By place: the number of the call of `enter` that used it last."""
        self._free: list[int] = []
        self._calls = 0
        self._most = 0

    def allow(self, tokens: int) -> None:
        """Raise the largest number of tokens to `tokens`, if it is smaller."""
        self._most = max(self._most, tokens)

    def __len__(self) -> int:
        """The number of tokens held."""
        return len(self._next)

    def find(self, ids: Sequence[int]) -> list[int]:
        """Return the places of the first tokens, as many as are held."""
        places, at = [], ROOT
        for token in ids:
            place = self._next.get((at, token))
            if place is None:
                break
            places.append(at := place)
        return places

    def enter(self, sequences: Sequence[Sequence[int]]) -> list[Path]:
        """Give each token of the sequences a place. The caller writes keys and values from `num_held` on.

        All of the sequences must have room in `allow` at a time.
        """
        self._calls += 1
        held = [self.find(ids) for ids in sequences]
        for place in chain.from_iterable(held):
            self._used[place] = self._calls
        self._make_room(sum(len(ids) - len(places) for ids, places in zip(sequences, held, strict=True)))
        return [self._extend(ids, places) for ids, places in zip(sequences, held, strict=True)]

    def keep(self, cache: Cache, rows: Sequence[tuple[int, Sequence[int], int]]) -> None:
        """Take over keys and values of rows of `cache`: (slot, tokens, number of them that were the row's prompt).

        A row whose prompt is no longer held is left out, because its prompt may lie outside the row.
        """
        there = [row for row in rows if len(self.find(row[1][: row[2]])) == row[2]]
        paths = self.enter([ids for _, ids, _ in there])
        moved = [
            (slot, cache.own(slot) - len(path.ids) + n, path.places[n])
            for (slot, _, _), path in zip(there, paths, strict=True)
            for n in range(path.num_held, len(path.ids))
        ]
        if not moved:
            return
        slots, columns, places = torch.tensor(moved, device=self.keys.device).unbind(1)
        for held, own in ((self.keys, cache.keys), (self.values, cache.values)):
            for layer in range(len(held)):
                held[layer].index_copy_(0, places, own[layer][slots, :, columns])

    def _extend(self, ids: Sequence[int], places: list[int]) -> Path:
        at, num_held = places[-1] if places else ROOT, len(ids)
        for n in range(len(places), len(ids)):
            edge = (at, ids[n])
            # An earlier sequence of the same call may have entered it.
            place = self._next.get(edge)
            if place is None:
                num_held = min(num_held, n)
                place = self._next[edge] = self._free.pop()
            self._used[place] = self._calls
            places.append(at := place)
        return Path(ids, places, num_held)

    def _make_room(self, num: int) -> None:
        """Have at least `num` free places: new ones up to the limit, then those of the sequences used longest ago."""
        size = len(self._used)
        more = min(self._most - size, max(num - len(self._free), size))
        if num > len(self._free) and more > 0:
            layers, _, kv, d = self.keys.shape
            new = self.keys.new_zeros(layers, more, kv, d)
            self.keys, self.values = torch.cat([self.keys, new], 1), torch.cat([self.values, new], 1)
            self._used += [0] * more
            self._free = [*range(size + more - 1, size - 1, -1), *self._free]
        if num > len(self._free):
            self._drop_oldest(num)

    def _drop_oldest(self, num: int) -> None:
        """Drop what was used longest ago. A token is as new as any behind it, so what stays is a trie again."""
        ages, room, oldest = Counter(self._used[place] for place in self._next.values()), len(self._free), 0
        for age in sorted(ages):
            if room >= num:
                break
            room, oldest = room + ages[age], age
        self._next = {edge: place for edge, place in self._next.items() if self._used[place] > oldest}
        taken = set(self._next.values())
        self._free = [place for place in range(len(self._used) - 1, -1, -1) if place not in taken]


class Prefill:
    """The tokens of some prompts that are to be computed, one prompt's after another's: N of p prompts."""

    def __init__(self, prefix: PrefixCache, paths: Sequence[Path]) -> None:
        self._prefix = prefix
        device = prefix.keys.device
        num, self.width = len(paths), max(len(path.ids) for path in paths)
        """The tokens of the longest prompt, of which some are held."""
        self._num = num
        news = [len(path.ids) - path.begin for path in paths]
        firsts, most = [0, *accumulate(news)], max(news)

        def tensor(numbers: list[int]) -> Tensor:
            return torch.tensor(numbers, dtype=torch.int64, device=device)

        self.ids = tensor([token for path in paths for token in path.ids[path.begin :]])
        """int64 [N]"""
        self.positions = tensor([n for path in paths for n in range(path.begin, len(path.ids))])
        """int64 [N]"""
        self.ends = tensor([first - 1 for first in firsts[1:]])
        """int64 [p]: the index of each prompt's last token among the N."""
        # A prompt that is held as a whole computes its last token again, and leaves its keys as they are.
        owned = [
            firsts[i] + n - path.begin for i, path in enumerate(paths) for n in range(path.num_held, len(path.ids))
        ]
        self._owned = tensor(owned)
        self._new = tensor([place for path in paths for place in path.places[path.num_held :]])
        # A short prompt is filled up with its first token, and hidden there.
        self._places = tensor([n for p in paths for n in p.places + p.places[:1] * (self.width - len(p.places))])
        self._together = tensor([firsts[i] + min(n, new - 1) for i, new in enumerate(news) for n in range(most)])
        self._apart = tensor([i * most + n for i, new in enumerate(news) for n in range(new)])
        upto = self.positions.index_select(0, self._together).view(num, most, 1)
        hidden = torch.arange(self.width, device=device).view(1, 1, -1) > upto
        bias = torch.zeros(hidden.shape, dtype=prefix.keys.dtype, device=device)
        self._bias = bias.masked_fill_(hidden, torch.finfo(bias.dtype).min)[:, None]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return attention [N, heads d] of the new tokens, and the keys and values [p, kv, width, d] of all prompts.

        q: [N, heads, d]; k, v: [N, kv, d], which the prefix cache keeps.
        """
        held = self._prefix.keys[layer], self._prefix.values[layer]
        for pool, new in zip(held, (k, v), strict=True):
            pool.index_copy_(0, self._new, new.index_select(0, self._owned))
        keys, values = (
            pool.index_select(0, self._places).view(self._num, self.width, *pool.shape[1:]).transpose(1, 2)
            for pool in held
        )
        (_, heads, d), num = q.shape, self._num
        queries = q.reshape(len(q), -1).index_select(0, self._together).view(num, -1, heads, d).transpose(1, 2)
        out = biased_attention(queries, keys, values, self._bias, q.is_cuda)
        return out.transpose(1, 2).reshape(-1, heads * d).index_select(0, self._apart), (keys, values)


def biased_attention(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor, on_gpu: bool) -> Tensor:
    """Return attention [p, heads, n, d] of queries [p, heads, n, d] to keys and values [p, kv, width, d].

    bias: [p, 1, n, width], added to the scores. On a GPU the keys are repeated for the heads that share them: only the
    plain one of torch's kernels takes both a bias and shared heads, and it holds all scores in float32.
    """
    shared = queries.shape[1] // keys.shape[1]
    if on_gpu and shared > 1:
        keys, values = (x.repeat_interleave(shared, 1) for x in (keys, values))
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias, enable_gqa=shared > 1 and not on_gpu)
