"""Training with DeepSpeed: ranks share out optimiser, gradients and weights (ZeRO 0 to 3), some of it on the CPU.

Log-probs are computed in float32; `pipeline.train.sharded` has what is dealt out and how it is saved.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.config.sections import OptimizerConfig, TrainConfig
from pipeline.errors import CheckpointError
from pipeline.models.forward import logprobs_at
from pipeline.models.load import frozen_copy, recompute_activations
from pipeline.models.lora import Adapted
from pipeline.train.backend import CriticBackend, Who
from pipeline.train.critic import TorchCritic, Within, own_backbone
from pipeline.train.optimizer import schedule
from pipeline.train.ranks import ALONE, Ranks
from pipeline.train.reference import as_base, refreshed
from pipeline.train.replay import Replay
from pipeline.train.sharded import Sharded
from pipeline.train.sharded_critic import ShardedCritic


class DeepSpeedBackend:
    """Holds the policy `model`, sharded once a stage has begun, its reference and its critic. Implements `Backend`."""

    def __init__(self, model: Any, config: TrainConfig, ranks: Ranks = ALONE, adapted: Adapted | None = None) -> None:
        """`adapted`: what has put adapters into `model`, where only those are trained."""
        self.adapted = adapted
        self.model = model.eval()  # no dropout: ratios compare the same function
        self.ranks = ranks
        self.train_config = config
        self.reference: Any = None
        self.critic: CriticBackend | None = None
        self.config: OptimizerConfig | None = None
        self.total_steps = 0
        self.num_updates = 0
        self.sharded: Sharded | None = None
        self._whole = model
        if adapted is not None:
            self._whole = adapted.twin
        elif config.zero == 3:
            self._whole = copy.deepcopy(model)
        self._whole_is_fresh = True
        self._spare: Any = None
        """Becomes the reference."""
        if config.gradient_checkpointing:
            recompute_activations(model)

    def start(self, optimizer: OptimizerConfig, total_steps: int) -> None:
        """A fresh optimiser for `total_steps` updates; the weights are dealt out the first time."""
        self.config, self.total_steps, self.num_updates = optimizer, total_steps, 0
        if self.sharded is None:
            if self._whole is self.model and self.reference is None:
                self._spare = frozen_copy(self.model)  # a copy later would take DeepSpeed's hooks along
            self.sharded = Sharded(self.model, "gradient norm", optimizer, self.train_config, self.ranks)
        self.sharded.restart(optimizer)

    def start_critic(self, shared: bool, optimizer: OptimizerConfig, total_steps: int) -> None:
        """A critic that has learned nothing: sharded like the policy, but for a head on the policy's backbone."""
        if shared:
            self.critic = TorchCritic(self.model, None, optimizer, total_steps, self.ranks, self._within())
        else:
            model = own_backbone(self.whole_model())
            self.critic = ShardedCritic(model, optimizer, total_steps, self.train_config, self.ranks)

    def logprobs(
        self,
        input_ids: Tensor,
        where: Tensor,
        temperature: float,
        who: Who = "policy",
        entropy: bool = False,
        replay: Replay | None = None,
        lengths: Sequence[int] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probs [B, T] at `where` and, if asked for, entropies; see `Backend.logprobs`."""
        routing = replay.routing if replay is not None and who == "policy" else None
        kept = None if replay is None else replay.kept

        def compute(model: Any) -> tuple[Tensor, Tensor | None]:
            return logprobs_at(
                model,
                input_ids,
                where,
                temperature,
                entropy,
                kept=kept,
                routing=routing,
                lengths=lengths,
                chunk_tokens=self.train_config.logits_chunk_tokens,
                pieces=self.ranks.pieces,
            )

        self._seat(who)
        found: tuple[Tensor, Tensor | None]
        if who == "reference" and not isinstance(self.reference, Adapted):
            found = compute(self.reference)
        else:
            with nullcontext() if who == "policy" else as_base(self.reference):
                found = self._run(compute)
        return found

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient."""
        assert self.sharded is not None
        self.sharded.backward(loss)

    def step(self) -> dict[str, float]:
        """One AdamW update; see `Backend.step`."""
        assert self.config is not None
        assert self.sharded is not None
        rate = schedule(self.config, self.num_updates, self.total_steps)
        self._whole_is_fresh = False
        norm = self.sharded.step(self.config, rate, self.num_updates)
        self.num_updates += 1
        return {"grad_norm": norm, "learning_rate": rate}

    def discard(self) -> None:
        """Forget the gradient, the critic's too."""
        if self.sharded is not None:
            self.sharded.discard()
        if self.critic is not None:
            self.critic.discard()

    def refresh_reference(self, alpha: float = 1.0) -> None:
        """reference <- alpha * policy + (1 - alpha) * reference; every rank holds the whole of it."""
        if self.reference is None and self._spare is not None:
            self.reference, self._spare, alpha = self._spare, None, 1.0
        self.reference = refreshed(self.reference, self.whole_model(), alpha, self.adapted, self._gathering)

    @torch.no_grad()
    def whole_model(self) -> Any:
        """The policy's module, or with ZeRO 3 a second one whose weights are gathered one by one where they changed."""
        if self._whole is not self.model and not self._whole_is_fresh and self.sharded is not None:
            if self.adapted is not None:
                self.adapted.merge(self._gathering)
            else:
                targets = dict(self._whole.named_parameters())
                for name, weight in self.sharded.gathered():
                    targets[name].copy_(weight)
            self._whole_is_fresh = True
        return self._whole

    def save(self, folder: Path, save_model: Callable[[Any, Path], None]) -> None:
        """Model as a Hugging Face folder; master weights, moments, reference and critic, each in files of its own."""
        whole = self.whole_model()
        state: dict[str, Any] = {"num_updates": self.num_updates, "total_steps": self.total_steps}
        if self.sharded is not None and self.config is not None:
            state["config"] = self.config.model_dump()
            state["files"] = self.sharded.write(folder)
        if isinstance(self.critic, ShardedCritic):
            self.critic.write(folder)
        if self.adapted is not None:
            self.adapted.save(folder, self.ranks.is_first, self._gathering)
        state["reference_is_base"] = isinstance(self.reference, Adapted)
        if not self.ranks.is_first:
            return
        save_model(whole, folder / "model")
        (folder / "deepspeed.json").write_text(json.dumps(state))
        if self.reference is not None and not isinstance(self.reference, Adapted):
            torch.save(self.reference.state_dict(), folder / "reference.pt")
        if isinstance(self.critic, TorchCritic):
            torch.save(self.critic.state_dict(), folder / "critic.pt")

    def load(self, folder: Path) -> None:
        """Restore master weights, moments, reference and critic; who made this backend loaded the model.

        Raises: CheckpointError if the saved state does not fit the model, or another backend wrote it.
        """
        if not (folder / "deepspeed.json").exists():
            raise CheckpointError(
                f"{folder} was not written by train.backend=deepspeed; go on with the one that did, or begin a new run "
                f"with model.path: {folder / 'model'}"
            )
        state = json.loads((folder / "deepspeed.json").read_text())
        if self.adapted is not None:
            self.adapted.load(folder)
            self.adapted.merge()
        if state["reference_is_base"]:
            self.reference = self.adapted
        if (folder / "reference.pt").exists():
            self.reference = frozen_copy(self.whole_model())
            self.reference.load_state_dict(torch.load(folder / "reference.pt", weights_only=True))
        if "config" in state:
            self.start(OptimizerConfig.model_validate(state["config"]), state["total_steps"])
            assert self.sharded is not None
            self.sharded.read(folder, state["files"], state["num_updates"])
        self.num_updates = state["num_updates"]
        if (folder / "critic.pt").exists():
            saved = torch.load(folder / "critic.pt", map_location=self.model.device, weights_only=True)
            self.critic = TorchCritic.restored(self.model, saved, folder / "critic", self.ranks, self._within())
        elif (folder / "critic").is_dir():
            self.critic = ShardedCritic.restored(folder, self._whole, self.train_config, self.ranks)

    def _gathering(self, *parameters: Tensor) -> AbstractContextManager[Any]:
        """A context in which they are whole."""
        found: AbstractContextManager[Any] = nullcontext() if self.sharded is None else self.sharded.whole(*parameters)
        return found

    def _run(self, compute: Callable[[Any], Any]) -> Any:
        return compute(self.model) if self.sharded is None else self.sharded.run(compute)

    def _within(self) -> Within:
        """How a head on the policy's backbone computes and learns."""
        assert self.sharded is not None
        return Within(self._run, self.backward, self.sharded.scale)

    def _seat(self, who: Who) -> None:
        """The reference waits in the CPU's memory while others compute, where the recipe offloads what waits."""
        if self.reference is None or isinstance(self.reference, Adapted) or self.train_config.offload == "none":
            return
        seat = self._whole.device if who == "reference" else torch.device("cpu")
        if self.reference.device != seat:
            self.reference.to(seat)
