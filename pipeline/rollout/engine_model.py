"""The policy as an engine needs it that copies the weights: model, end tokens, weights, records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from verizero.pipeline.models.lora import EngineAdapters
from verizero.pipeline.rollout.weights import Named, Weights, weights_of


@dataclass(frozen=True, slots=True)
class Records:
    """The facts about each token that the engine records, for training to replay."""

    sampling: bool = False
    """The set of tokens that each token was drawn from."""
    routing: bool = False
    """The experts that computed each token."""


NO_RECORDS = Records()


@dataclass(frozen=True, slots=True)
class EngineModel:
    """The policy, its end tokens and its weights."""

    model: Any
    eos_ids: tuple[int, ...]
    weights: Weights
    records: Records
    """The facts that the engine records for each token."""
    dtype: torch.dtype
    """The number type in which the engine computes."""
    longest: int | None
    """Most tokens of a prompt and its response; None: nothing limits them."""
    adapters: EngineAdapters | None = None
    """The adapters in `model`, if the engine takes these alone; None: it takes `weights`."""

    def published(self, with_base: bool) -> Named:
        """Yield what the engine takes at a publish: all weights, or adapters alone, after their base if `with_base`."""
        if self.adapters is None:
            return self.weights()
        return chain(self.adapters.base() if with_base else (), self.adapters.factors())

    @classmethod
    def of(
        cls,
        model: Any,
        eos_ids: Sequence[int],
        weights: Weights | None = None,
        records: Records = NO_RECORDS,
        dtype: torch.dtype | None = None,
        longest: int | None = None,
        adapters: EngineAdapters | None = None,
    ) -> EngineModel:
        """Describe the policy `model`.

        `weights` yields its weights if this process holds only a shard of them. `dtype`: None for the module's own.
        `longest`: None for the model's context.
        """
        ends, context = tuple(sorted(set(eos_ids))), getattr(model.config, "max_position_embeddings", None)
        way = weights or weights_of(model)
        return cls(model, ends, way, records, dtype or model.dtype, longest or context, adapters)
