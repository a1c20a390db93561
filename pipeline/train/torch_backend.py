"""Training with torch's own AdamW: one device a process, each with the whole policy, gradients summed over ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.config.sections import OptimizerConfig, TrainConfig
from pipeline.errors import CheckpointError, NonFiniteError
from pipeline.models.forward import logprobs_at
from pipeline.models.load import frozen_copy, recompute_activations
from pipeline.models.lora import Adapted
from pipeline.models.routing import Tally
from pipeline.train.backend import Who
from pipeline.train.critic import TorchCritic, own_backbone
from pipeline.train.optimizer import adamw, clipped_step, finite_norm, schedule
from pipeline.train.ranks import ALONE, Ranks
from pipeline.train.reference import as_base, refreshed
from pipeline.train.replay import Replay

DEFAULTS = TrainConfig()


class TorchBackend:
    """Holds the policy `model`, its optimiser, its reference and its critic. Implements `Backend`."""

    def __init__(
        self, model: Any, ranks: Ranks = ALONE, config: TrainConfig = DEFAULTS, adapted: Adapted | None = None
    ) -> None:
        """`adapted`: what has put adapters into `model`, where only those are trained."""
        self.ranks = ranks
        self.adapted = adapted
        self._is_merged = True
        self.train_config = config
        self.model = model.eval()  # no dropout: ratios compare the same function
        if config.gradient_checkpointing:
            recompute_activations(model)
        self.reference: Any = None
        self.teacher: Any = None
        self.critic: TorchCritic | None = None
        self.config: OptimizerConfig | None = None
        self.optimizer: torch.optim.Optimizer | None = None
        self.total_steps = 0
        self.num_updates = 0
        self.rerouted = Tally()

    @property
    def device(self) -> torch.device:
        """Where the policy lives."""
        device: torch.device = self.model.device
        return device

    def start(self, optimizer: OptimizerConfig, total_steps: int) -> None:
        """A fresh optimiser for `total_steps` updates; reference and critic of a stage before are gone."""
        self.reference = self.teacher = self.critic = None
        self.config, self.total_steps, self.num_updates = optimizer, total_steps, 0
        self.optimizer = adamw(self.model.parameters(), optimizer)
        self.discard()

    def start_critic(self, shared: bool, optimizer: OptimizerConfig, total_steps: int) -> None:
        """A critic that has learned nothing."""
        model = None if shared else own_backbone(self.whole_model())
        self.critic = TorchCritic(self.model, model, optimizer, total_steps, self.ranks)

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
        """Log-probs [B, T] at `where` and, if asked for, entropies; with gradient for the policy outside no_grad."""
        model = self.model if who == "policy" or isinstance(self.reference, Adapted) else self.reference
        with nullcontext() if who == "policy" else as_base(self.reference):
            return logprobs_at(
                model,
                input_ids,
                where,
                temperature,
                entropy,
                kept=None if replay is None else replay.kept,
                routing=replay.routing if replay is not None and who == "policy" else None,
                rerouted=self.rerouted if torch.is_grad_enabled() else None,
                lengths=lengths,
                chunk_tokens=self.train_config.logits_chunk_tokens,
                pieces=self.ranks.pieces,
            )

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient."""
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self) -> dict[str, float]:
        """One AdamW update; see `Backend.step`."""
        assert self.config is not None
        assert self.optimizer is not None
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        self.ranks.sum_gradients(parameters)
        try:
            norm = finite_norm(parameters, "gradient norm", self.num_updates)
        except NonFiniteError:
            self.discard()
            raise
        rate = schedule(self.config, self.num_updates, self.total_steps)
        clipped_step(self.optimizer, self.config, parameters, norm, rate)
        self._is_merged = False
        metrics = {"grad_norm": float(norm), "learning_rate": rate}
        if self.rerouted.total:
            metrics["routing/changed"] = self.rerouted.changed / self.rerouted.total
        self._forget()
        self.num_updates += 1
        return metrics

    def discard(self) -> None:
        """Forget the gradient, the critic's too."""
        self._forget()
        if self.critic is not None:
            self.critic.discard()

    def refresh_reference(self, alpha: float = 1.0) -> None:
        """reference <- alpha * policy + (1 - alpha) * reference."""
        self.reference = refreshed(self.reference, self.whole_model(), alpha, self.adapted)

    def hold_teacher(self, model: Any) -> None:
        """The reference is `model` until the next stage; checkpoints do not hold it."""
        self.reference = self.teacher = model.eval().requires_grad_(False)

    def whole_model(self) -> Any:
        """The policy's module itself; under adapters the plain one that holds them merged."""
        if self.adapted is None:
            return self.model
        if not self._is_merged:
            self.adapted.merge()
            self._is_merged = True
        return self.adapted.twin

    def save(self, folder: Path, save_model: Callable[[Any, Path], None]) -> None:
        """Model, and a critic with its own backbone, as Hugging Face folders; optimisers and reference as tensors."""
        if not self.ranks.is_first:  # all ranks hold the same
            return
        save_model(self.whole_model(), folder / "model")
        if self.adapted is not None:
            self.adapted.save(folder, True)
        state: dict[str, Any] = {"num_updates": self.num_updates, "total_steps": self.total_steps}
        if self.config is not None and self.optimizer is not None:
            state["config"] = self.config.model_dump()
            state["optimizer"] = self.optimizer.state_dict()
        if isinstance(self.reference, Adapted):
            state["reference_is_base"] = True
        elif self.reference is not None and self.teacher is None:
            state["reference"] = self.reference.state_dict()
        if self.critic is not None:
            state["critic"] = self.critic.state_dict()
            if self.critic.model is not None:
                save_model(self.critic.model, folder / "critic")
        with (folder / "trainer.pt").open("wb") as file:  # given a path, torch hides a full disk's error
            torch.save(state, file)

    def load(self, folder: Path) -> None:
        """Restore optimisers, reference and critic; who made this backend loaded the model from `folder / "model"`.

        Raises: CheckpointError if the saved state does not fit the model, or another backend wrote it.
        """
        if not (folder / "trainer.pt").exists():
            raise CheckpointError(
                f"{folder} was not written by train.backend=torch; go on with the one that did, or begin a new run "
                f"with model.path: {folder / 'model'}"
            )
        state = torch.load(folder / "trainer.pt", map_location=self.device, weights_only=True)
        teacher = self.teacher
        self._empty()
        if self.adapted is not None:
            self.adapted.load(folder)
            self._is_merged = False
        try:
            if "config" in state:
                self.start(OptimizerConfig.model_validate(state["config"]), state["total_steps"])
                assert self.optimizer is not None
                self.optimizer.load_state_dict(state["optimizer"])
                self._check_moments(self.optimizer)
            if "reference" in state:
                self.reference = frozen_copy(self.whole_model())
                self.reference.load_state_dict(state["reference"])
        except (ValueError, RuntimeError, KeyError) as exc:
            raise CheckpointError(f"{folder / 'trainer.pt'} does not fit the model: {exc}") from exc
        if state.get("reference_is_base"):
            self.reference = self.adapted
        elif teacher is not None:
            self.hold_teacher(teacher)
        if "critic" in state:
            self.critic = TorchCritic.restored(self.model, state["critic"], folder / "critic", self.ranks)
        self.num_updates = state["num_updates"]

    def _empty(self) -> None:
        """Drop what belongs to the stage that was under way."""
        self.discard()
        self.config, self.optimizer, self.reference, self.critic = None, None, None, None

    def _forget(self) -> None:
        self.rerouted = Tally()
        for p in self.model.parameters():
            p.grad = None

    @staticmethod
    def _check_moments(optimizer: torch.optim.Optimizer) -> None:
        """Raises: ValueError where AdamW's moments have another shape than their parameter, which torch lets pass."""
        for parameter, state in optimizer.state.items():
            if (shape := state["exp_avg"].shape) != parameter.shape:
                raise ValueError(f"a moment of shape {tuple(shape)} for a parameter of {tuple(parameter.shape)}")
