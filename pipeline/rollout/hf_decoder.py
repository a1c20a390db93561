"""Prefill and one-token steps through transformers' own forward, with the interface of the fast decoder."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from pipeline.models.routing import recording, routers


class HfCache:
    """A transformers cache with the padding of each row; column c of row b is position c - pad[b]."""

    def __init__(self, inner: Any, pad: Tensor, length: int) -> None:
        self.inner, self.pad, self.length = inner, pad, length
        self.routing: Tensor | None = None
        """[B, tokens, layers, top_k] int16: the experts of the last forward's tokens; None for a dense model."""

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but `rows` (int64 [n], ascending)."""
        self.inner.batch_select_indices(rows)
        self.pad = self.pad.index_select(0, rows)

    def mask(self, columns: int) -> Tensor:
        """Return int64 [B, columns]: 1 on real tokens, 0 on padding."""
        return (torch.arange(columns, device=self.pad.device)[None] >= self.pad[:, None]).long()


class HfDecoder:
    """Decodes with a frozen copy of `model`, whose weights each `refresh` replaces."""

    def __init__(self, model: Any) -> None:
        self.source = model
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.has_routers = bool(routers(self.model))

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the source's weights."""
        self.model.load_state_dict(self.source.state_dict())

    @torch.inference_mode()
    def prefill(self, ids: Tensor, pad: Tensor, repeat: Tensor, max_new_tokens: int) -> tuple[Tensor, HfCache]:
        """Return logits [B, V] after the prompts, and the cache: both have row p of the prompts repeat[p] times.

        ids: int64 [P, T], left-padded by pad [P]. The cache grows by itself: `max_new_tokens` is for the fast path.
        """
        from transformers import DynamicCache

        # Each prompt is computed once; its row of the cache is then copied for every response to it.
        cache = HfCache(DynamicCache(config=self.model.config), pad, ids.shape[1])
        # Padding has no position of its own; any valid one does, since it is masked.
        positions = (torch.arange(ids.shape[1], device=ids.device)[None] - pad[:, None]).clamp_(min=0)
        logits = self._forward(ids, positions, cache)
        rows = torch.repeat_interleave(torch.arange(ids.shape[0], device=ids.device), repeat)
        cache.keep(rows)
        if cache.routing is not None:
            cache.routing = cache.routing.index_select(0, rows)
        return logits.index_select(0, rows), cache

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
