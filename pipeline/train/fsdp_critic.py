"""A critic with a backbone of its own, which FSDP divides among ranks like the policy's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from pipeline.config.sections import OptimizerConfig
from pipeline.errors import ConfigError, boundary
from pipeline.models.unloaded import on_meta
from pipeline.train.critic import DividedCritic
from pipeline.train.fsdp_shards import FsdpShards


class FsdpCritic(DividedCritic[FsdpShards]):
    """A critic that FSDP divides: its blocks are a copy of the policy's, its head is zero."""

    def __init__(
        self,
        policy: FsdpShards,
        divide: Callable[[str, Any], FsdpShards],
        fill: Callable[[FsdpShards], None],
        optimizer: OptimizerConfig,
        total_steps: int,
    ) -> None:
        """`divide(whose, model)` divides a model on `meta`; `fill` sets those weights that the policy has too.

        Raises: ConfigError if transformers has no token classifier of this architecture.
        """
        import transformers

        what = f"a critic of its own for model type {policy.model.config.model_type!r}"
        with boundary(ConfigError, f"{what} (set critic_shared: true for a head on the policy's backbone)"):
            settings = copy.deepcopy(policy.model.config)
            settings.num_labels = 1
            model = on_meta(transformers.AutoModelForTokenClassification, settings, torch.float32)
        super().__init__(divide("critic's gradient norm", model), policy.ranks, optimizer, total_steps)
        with torch.no_grad():
            for p in self.sharded.model.parameters():
                p.to_local().zero_()
            fill(self.sharded)
        self.sharded.restart(optimizer)
