"""Classifiers of one label that FSDP divides: a critic with a backbone of its own, and a reward model."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.errors import ConfigError, boundary
from verizero.pipeline.models.saved_names import as_saved, without_memory
from verizero.pipeline.models.scalar_head import Head, of_one_label
from verizero.pipeline.models.streamed import Streamed
from verizero.pipeline.models.unloaded import on_meta
from verizero.pipeline.train.critic import DividedCritic, no_critic_message
from verizero.pipeline.train.fsdp_shards import FsdpShards, read_tensors, write_tensors
from verizero.pipeline.train.reward_model import NORM, RewardModel, classifier_in, no_reward_model_message

Divide = Callable[[str, Any], FsdpShards]
"""Divides a model on `meta`; the first argument begins error messages about its gradient."""
Fill = Callable[[FsdpShards], None]
"""Sets the weights of the blocks, which the policy has too."""
STATE, SHARDS = "reward_model.json", "shards"


def on_blocks(policy: FsdpShards, head: Head, what: str) -> Any:
    """Return a classifier of one label on `meta`, with the blocks of the policy's architecture.

    `what` begins the message. Raises: ConfigError if transformers has no such classifier.
    """
    import transformers

    with boundary(ConfigError, what):
        settings = of_one_label(policy.model.config)
        return on_meta(getattr(transformers, f"AutoModelFor{head}"), settings, torch.float32)


@torch.no_grad()
def begin(sharded: FsdpShards, fill: Fill) -> None:
    """Set the classifier's blocks to the policy's, and its head to zero."""
    for p in sharded.model.parameters():
        p.to_local().zero_()
    fill(sharded)


class FsdpCritic(DividedCritic[FsdpShards]):
    """A critic that FSDP divides: its blocks are a copy of the policy's, its head is zero."""

    def __init__(
        self, policy: FsdpShards, divide: Divide, fill: Fill, optimizer: OptimizerConfig, total_steps: int
    ) -> None:
        """Raises: ConfigError if transformers has no token classifier of this architecture."""
        model = on_blocks(policy, "TokenClassification", no_critic_message(policy.model))
        super().__init__(divide("critic's gradient norm", model), policy.ranks, optimizer, total_steps)
        begin(self.sharded, fill)
        self.sharded.restart(optimizer)


class FsdpRewardModel(RewardModel):
    """A reward model whose weights and rows are divided among ranks by FSDP."""

    def __init__(
        self,
        policy: FsdpShards,
        divide: Divide,
        fill: Fill,
        dtype: torch.dtype,
        optimizer: OptimizerConfig,
        total_steps: int,
        train: TrainConfig,
    ) -> None:
        """`dtype`: the number type of forward, backward and saved weights.

        Raises: ConfigError if transformers has no sequence classifier of this architecture.
        """
        model = on_blocks(policy, "SequenceClassification", no_reward_model_message(policy.model))
        self._dtype = dtype
        self.ranks = policy.ranks
        self._empty = without_memory(model)
        self.sharded = divide(NORM, model)
        begin(self.sharded, fill)
        super().__init__(self.sharded.model, optimizer, total_steps, train)

    @property
    def dtype(self) -> torch.dtype:
        """The number type of forward and backward; the shards are float32."""
        return self._dtype

    def take(self, folder: Path) -> None:
        """Set the weights to those of a Hugging Face folder; the optimiser is fresh. Raises: CheckpointError."""
        self.sharded.take(classifier_in(folder))
        self._start()

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote; any number of ranks may have written it. Raises: CheckpointError."""
        read_tensors(self.sharded.tensors(), folder / SHARDS)
        self.num_updates = json.loads((folder / STATE).read_text())["num_updates"]
        self.sharded.set_step(self.num_updates)

    def save(self, folder: Path, tokenizer: Any, is_first: bool = True) -> None:
        """Write model and optimiser into `folder`; every rank must call it."""
        self.write(folder / "model", tokenizer, is_first)
        write_tensors(self.sharded.tensors(), folder / SHARDS)
        if is_first:
            (folder / STATE).write_text(json.dumps({"num_updates": self.num_updates}))

    def write(self, folder: Path, tokenizer: Any, is_first: bool = True) -> None:
        """Write the model as a Hugging Face folder, a block at a time; every rank must call it."""

        def blocks() -> Any:
            return map(partial(as_saved, self._empty), self.sharded.gathered(self.dtype))

        Streamed(self._empty, blocks, is_first).save_pretrained(folder)
        if is_first:
            tokenizer.save_pretrained(folder)

    def _start(self) -> None:
        self.sharded.restart(self.config)

    def _run(self, compute: Callable[[Any], Tensor]) -> Tensor:
        rewards: Tensor = self.sharded.run(compute)
        return rewards

    def _backward(self, loss: Tensor) -> None:
        self.sharded.backward(loss)

    def _step(self, rate: float) -> float:
        return self.sharded.step(self.config, rate, self.num_updates)

    def _discard(self) -> None:
        self.sharded.discard()
