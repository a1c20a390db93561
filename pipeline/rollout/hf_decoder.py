"""Decodes through transformers' own forward, with the interface of the fast decoder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.models.adapted_layers import frozen_base
from verizero.pipeline.models.load import frozen_copy
from verizero.pipeline.models.quantized import sharing
from verizero.pipeline.models.routing import recording, routers


class HfCache:
    """A transformers cache with the padding of each row; column c of row b is position c - pad[b]."""

    def __init__(self, slots: int) -> None:
        self.places = slots
        """Prompts that can be added at a time."""
        self.inner: Any = None
        self.pad = torch.empty(0)
        self.length = 0
        self.routing: Tensor | None = None
        """[B, tokens, layers, top_k] int16: the experts of the last forward's tokens; None for a dense model."""
        self._order: list[int] = []

    def begin(self, inner: Any, pad: Tensor, length: int, rows: int) -> None:
        """Begin with a new transformers cache, whose rows are left-padded by pad [B]; all old rows have ended."""
        self.inner, self.pad, self.length, self._order = inner, pad, length, list(range(rows))

    @property
    def rows(self) -> int:
        """The number of rows that a step computes."""
        return len(self._order)

    def leave(self, slots: Sequence[int]) -> None:
        """Do nothing: rows that have ended are dropped by `resize`."""

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Move rows to slots that are free; `resize` follows, and copies them."""
        for source, target in zip(sources, targets, strict=True):
            self._order[target] = self._order[source]

    def resize(self, rows: int) -> None:
        """Keep the first `rows` slots."""
        if rows == len(self._order) and self._order == list(range(rows)):
            return
        self.select(torch.tensor(self._order[:rows], device=self.pad.device))
        self._order = list(range(rows))

    def select(self, rows: Tensor) -> None:
        """Keep rows [n], in that order."""
        self.inner.batch_select_indices(rows)
        self.pad = self.pad.index_select(0, rows)

    def mask(self, columns: int) -> Tensor:
        """Return int64 [B, columns]: 1 on real tokens, 0 on padding."""
        return (torch.arange(columns, device=self.pad.device)[None] >= self.pad[:, None]).long()


class HfDecoder:
    """Decodes with a frozen copy of `model`, whose weights each `refresh` replaces; a base of adapters is shared.

    transformers has many kinds of caches, which take no new rows: all rows begin together, and the next rows begin when
    all have ended.
    """

    refills = False
    needs_switch = True
    """Experts, for example, add up in an order that only torch's deterministic kernels fix."""

    def __init__(self, model: Any, pad_id: int = 0) -> None:
        self.source = model
        self.pad_id = pad_id
        self.model = frozen_copy(model, sharing(frozen_base(model)))
        self.has_routers = bool(routers(self.model))

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the source's weights."""
        for get in (torch.nn.Module.parameters, torch.nn.Module.buffers):
            for own, source in zip(get(self.model), get(self.source), strict=True):
                if own is not source:
                    own.copy_(source)

    def open(self, lengths: Sequence[int], repeats: Sequence[int], most: int, max_new_tokens: int) -> HfCache:
        """Return a cache without rows. It grows as needed; most arguments are for the fast path only."""
        return HfCache(min(most, sum(repeats)))

    @torch.inference_mode()
    def admit(
        self, cache: HfCache, prompts: Sequence[Sequence[int]], repeats: Sequence[int], slots: Sequence[int]
    ) -> Tensor:
        """Compute prompts, put prompt p into the cache for repeats[p] rows, and return logits [rows, V] after them.

        All rows of the cache have ended, so `slots` are its first.
        """
        from transformers import DynamicCache

        device, width = self.model.device, max(map(len, prompts))
        ids = torch.tensor([[self.pad_id] * (width - len(p)) + list(p) for p in prompts]).to(device)
        pad = torch.tensor([width - len(p) for p in prompts]).to(device)
        cache.begin(DynamicCache(config=self.model.config), pad, width, len(slots))
        # Padding has no position of its own; any valid one does, since it is masked.
        positions = (torch.arange(width, device=device)[None] - pad[:, None]).clamp_(min=0)
        # Each prompt is computed once; its row of the cache is then copied for every response to it.
        logits = self._forward(ids, positions, cache)
        rows = torch.tensor([i for i, n in enumerate(repeats) for _ in range(n)]).to(device)
        cache.select(rows)
        if cache.routing is not None:
            cache.routing = cache.routing.index_select(0, rows)
        return logits.index_select(0, rows)

    @torch.inference_mode()
    def step(self, tokens: Tensor, cache: HfCache) -> Tensor:
        """Return logits [B, V] after one more token (int64 [B]) in each row."""
        positions = (cache.length - cache.pad)[:, None]
        # Before the forward: its mask must cover the new column.
        cache.length += 1
        return self._forward(tokens[:, None], positions, cache)

    def _forward(self, ids: Tensor, positions: Tensor, cache: HfCache) -> Tensor:
        with recording(self.model) if self.has_routers else nullcontext() as choices:
            out = self.model(
                input_ids=ids,
                attention_mask=cache.mask(cache.length),
                position_ids=positions,
                past_key_values=cache.inner,
                use_cache=True,
                logits_to_keep=1,
            )
        cache.routing = None if choices is None else choices.take(len(ids))
        logits: Tensor = out.logits[:, -1].float()
        return logits
