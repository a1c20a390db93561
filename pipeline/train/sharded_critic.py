"""A critic with a backbone of its own under DeepSpeed: dealt out over ranks by the same stage as the policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from pipeline.config.sections import OptimizerConfig, TrainConfig
from pipeline.errors import CheckpointError, boundary
from pipeline.models.scalar_head import score_of
from pipeline.train.critic import load_backbone, values_of
from pipeline.train.optimizer import schedule
from pipeline.train.ranks import Ranks
from pipeline.train.sharded import Sharded

FILE = "critic.json"


class ShardedCritic:
    """A token classifier of one label in DeepSpeed's hands. Implements `CriticBackend`."""

    def __init__(
        self, model: Any, optimizer: OptimizerConfig, total_steps: int, config: TrainConfig, ranks: Ranks
    ) -> None:
        self.ranks = ranks
        self.model = model
        self.config = optimizer
        self.total_steps = total_steps
        self.num_updates = 0
        self.sharded = Sharded(model, "critic's gradient norm", optimizer, config, ranks)
        self.sharded.watch_gradient()
        self.sharded.restart(optimizer)

    def values(self, input_ids: Tensor, where: Tensor) -> Tensor:
        """V [B, T] of the states before the tokens at `where` (bool, False at column 0), 0 elsewhere."""
        found: Tensor = self.sharded.run(
            lambda model: values_of(model, score_of(model), input_ids, where, self.ranks.pieces)
        )
        return found

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient."""
        self.sharded.backward(loss)

    def require_finite(self) -> None:
        """Raises: NonFiniteError if the gradient is not finite on some rank."""
        self.sharded.require_finite(self.num_updates)

    def step(self) -> dict[str, float]:
        """One clipped AdamW update; the gradient is gone."""
        rate = schedule(self.config, self.num_updates, self.total_steps)
        norm = self.sharded.step(self.config, rate, self.num_updates)
        self.num_updates += 1
        return {"critic/grad_norm": norm, "critic/learning_rate": rate}

    def discard(self) -> None:
        """Forget the gradient."""
        self.sharded.discard()

    def write(self, folder: Path) -> None:
        """The weights as a Hugging Face folder `critic/`; master weights and moments in files beside the policy's."""
        first = self.ranks.is_first
        weights = {name: w.cpu().clone() for name, w in self.sharded.gathered() if first}
        files = self.sharded.write(folder, "critic-optimizer")
        if first:
            self.model.save_pretrained(folder / "critic", state_dict=weights)
            state = {
                "config": self.config.model_dump(),
                "total_steps": self.total_steps,
                "num_updates": self.num_updates,
                "files": files,
            }
            (folder / FILE).write_text(json.dumps(state))

    @classmethod
    def restored(cls, folder: Path, policy: Any, config: TrainConfig, ranks: Ranks) -> ShardedCritic:
        """The critic that was written into `folder`. Raises: CheckpointError if it does not fit the policy."""
        with boundary(CheckpointError, f"the critic of {folder} does not fit the policy"):
            state = json.loads((folder / FILE).read_text())
            model = load_backbone(folder / "critic", policy)
            critic = cls(model, OptimizerConfig.model_validate(state["config"]), state["total_steps"], config, ranks)
            critic.sharded.read(folder, state["files"], state["num_updates"])
            critic.num_updates = state["num_updates"]
        return critic
