"""A critic with a backbone of its own, which FSDP divides among ranks like the policy's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pipeline.config.sections import OptimizerConfig
from pipeline.errors import ConfigError, boundary
from pipeline.models.scalar_head import score_of
from pipeline.models.unloaded import on_meta
from pipeline.train.critic import values_of
from pipeline.train.fsdp_shards import FsdpShards
from pipeline.train.optimizer import schedule


class FsdpCritic:
    """A token classifier of one label: its blocks are a copy of the policy's, its head is zero. A `CriticBackend`."""

    def __init__(
        self,
        policy: FsdpShards,
        divide: Callable[[str, Any], FsdpShards],
        optimizer: OptimizerConfig,
        total_steps: int,
    ) -> None:
        """`divide(whose, model)` divides a model on `meta`.

        Raises: ConfigError if transformers has no token classifier of this architecture.
        """
        import transformers

        what = f"a critic of its own for model type {policy.model.config.model_type!r}"
        with boundary(ConfigError, f"{what} (set critic_shared: true for a head on the policy's backbone)"):
            settings = copy.deepcopy(policy.model.config)
            settings.num_labels = 1
            model = on_meta(transformers.AutoModelForTokenClassification, settings, torch.float32)
        self.ranks = policy.ranks
        self.config = optimizer
        self.total_steps = total_steps
        self.num_updates = 0
        self.sharded = divide("critic's gradient norm", model)
        self._copy(policy)
        self.sharded.restart(optimizer)

    def values(self, input_ids: Tensor, where: Tensor) -> Tensor:
        """Return V [B, T] of the states before the tokens at `where` (bool, False at column 0), 0 elsewhere."""
        pieces = self.ranks.pieces
        values: Tensor = self.sharded.run(lambda model: values_of(model, score_of(model), input_ids, where, pieces))
        return values

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient."""
        self.sharded.backward(loss)

    def require_finite(self) -> None:
        """Raise NonFiniteError if the gradient is not finite on some rank."""
        self.sharded.require_finite(self.num_updates)

    def step(self) -> dict[str, float]:
        """Take one clipped AdamW update; the gradient is gone."""
        rate = schedule(self.config, self.num_updates, self.total_steps)
        norm = self.sharded.step(self.config, rate, self.num_updates)
        self.num_updates += 1
        return {"critic/grad_norm": norm, "critic/learning_rate": rate}

    def discard(self) -> None:
        """Forget the gradient."""
        self.sharded.discard()

    def note(self) -> dict[str, Any]:
        """Return what a checkpoint says of the critic, its shards apart."""
        return {
            "config": self.config.model_dump(),
            "total_steps": self.total_steps,
            "num_updates": self.num_updates,
        }

    @torch.no_grad()
    def _copy(self, policy: FsdpShards) -> None:
        """Set the blocks to the policy's, each rank its own rows, and the head to zero."""
        theirs = dict(policy.model.named_parameters())
        for name, p in self.sharded.model.named_parameters():
            if name in theirs:
                p.to_local().copy_(theirs[name].to_local())
            else:
                p.to_local().zero_()
