"""Training with torch's own AdamW: each rank has the whole policy on its device; gradients are summed over ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.errors import CheckpointError, NonFiniteError
from verizero.pipeline.models.compiled import compile_blocks
from verizero.pipeline.models.cpu.memory import keep_freed_memory
from verizero.pipeline.models.load import frozen_copy, recompute_activations
from verizero.pipeline.models.lora import Adapted, EngineAdapters, has_factors, is_factor
from verizero.pipeline.models.routing import Rerouted
from verizero.pipeline.models.saved_names import as_saved
from verizero.pipeline.models.streamed import Streamed
from verizero.pipeline.train.adapted_reward_model import AdaptedRewardModel
from verizero.pipeline.train.backend import Backend, T, WhichModel, compiling_of, require_written_by
from verizero.pipeline.train.critic import TorchCritic, own_backbone
from verizero.pipeline.train.device import fixed_order
from verizero.pipeline.train.optimizer import Masters, clipped_step, finite_norm, schedule, trained_by, with_masters
from verizero.pipeline.train.ranks import ALONE, Ranks
from verizero.pipeline.train.reference import as_base, refreshed
from verizero.pipeline.train.reward_model import RewardModel

DEFAULTS = TrainConfig()


class TorchBackend(Backend):
    """The policy, its optimiser, reference and critic, each whole in every process."""

    def __init__(
        self, model: Any, ranks: Ranks = ALONE, config: TrainConfig = DEFAULTS, adapted: Adapted | None = None
    ) -> None:
        """`adapted`: the adapters in `model`, if they alone are trained."""
        self.ranks = ranks
        self.adapted = adapted
        self.train_config = config
        if adapted is not None:
            adapted.read()
        self.model = model.eval()  # no dropout: ratios compare the same function
        if model.device.type == "cpu":
            keep_freed_memory()
        self.compiling = compiling_of(config, model.device)
        compile_blocks(model, self.compiling)
        if config.gradient_checkpointing:
            recompute_activations(model)
        self.reference: Any = None
        self.critic: TorchCritic | None = None
        self.config: OptimizerConfig | None = None
        self.optimizer: torch.optim.Optimizer | None = None
        self.total_steps = 0
        self.num_updates = 0
        self.rerouted = Rerouted()

    def start(self, optimizer: OptimizerConfig, total_steps: int) -> None:
        """Make a fresh optimiser for `total_steps` updates; drop reference and critic of an earlier stage."""
        self.reference = self.critic = None
        self.config, self.total_steps, self.num_updates = optimizer, total_steps, 0
        self._detach_optimizer()
        self.optimizer = with_masters(self.model, optimizer)
        self.discard()

    def start_critic(self, shared: bool, optimizer: OptimizerConfig, total_steps: int) -> None:
        """Make an untrained critic."""
        model = None if shared else own_backbone(self.whole_model())
        self.critic = TorchCritic(self.model, model, optimizer, total_steps, self.ranks)

    def compute(self, function: Callable[[Any], T], which: WhichModel = "policy") -> T:
        """Return function(module) for the module of the policy or the reference; see `Backend.compute`."""
        model = self.model if which == "policy" or isinstance(self.reference, Adapted) else self.reference
        with nullcontext() if which == "policy" else as_base(self.reference):
            return function(model)

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient."""
        with fixed_order():
            loss.backward()  # type: ignore[no-untyped-call]

    def step(self) -> dict[str, float]:
        """Take one AdamW update; see `Backend.step`."""
        assert self.config is not None
        assert self.optimizer is not None
        parameters = [p for p in trained_by(self.optimizer) if p.grad is not None]
        # Before the norm, which is that of the gradient over all ranks.
        self.ranks.sum_gradients(parameters)
        try:
            norm = finite_norm(parameters, "gradient norm", self.num_updates)
        except NonFiniteError:
            self.discard()
            raise
        rate = schedule(self.config, self.num_updates, self.total_steps)
        clipped_step(self.optimizer, self.config, parameters, norm, rate)
        metrics = {"grad_norm": float(norm), "learning_rate": rate, **self.changed_routes(), **self.not_compiled()}
        self._clear_policy_gradient()
        self.num_updates += 1
        return metrics

    def discard(self) -> None:
        """Delete the gradient, the critic's too."""
        self._clear_policy_gradient()
        if self.critic is not None:
            self.critic.discard()

    def refresh_reference(self, alpha: float = 1.0) -> None:
        """Set reference <- alpha * policy + (1 - alpha) * reference."""
        if self.adapted is None:
            self.reference = refreshed(self.reference, self.model, alpha)
        elif self.reference is None and self.adapted.is_fresh():
            self.reference = self.adapted  # the policy without its adapters, which takes no memory
        elif alpha == 1 or self.reference is None:
            self.reference = self.adapted.snapshot()  # which takes the memory of the adapters
        else:
            # A mean of two pairs of adapters is none of their products, so it is made of whole weights.
            ours = self.reference
            if isinstance(ours, Adapted):
                ours = self.adapted.plain_model(learned=False)
            elif has_factors(ours.state_dict()):
                ours = self.adapted.plain_model(ours)
            self.reference = refreshed(ours, self.adapted.plain_model(), alpha)

    def set_optimizer(self, optimizer: OptimizerConfig) -> None:
        """Use other settings of the optimiser from the next update on."""
        self.config = optimizer

    def engine_adapters(self, in_bits: bool) -> EngineAdapters | None:
        """Return the adapters, but None if some are on experts or the output layer, which vLLM does not compute."""
        adapted = self.adapted
        return None if adapted is None else adapted.for_engine(partial(adapted.plain_blocks, None, False), in_bits)

    def reward_model(
        self, optimizer: OptimizerConfig, total_steps: int, folder: Path | None = None, start: Path | None = None
    ) -> RewardModel:
        """Return a reward model, on the policy's own base if that is quantised; see `Backend.reward_model`."""
        if self.adapted is None or not self.adapted.is_quantized:
            return super().reward_model(optimizer, total_steps, folder, start)
        model = AdaptedRewardModel(self.adapted, optimizer, total_steps, self.train_config)
        if start is not None:
            model.take(start)
        elif folder is not None:
            model.load(folder)
        return model

    def engine_module(self) -> Any:
        """Return the policy's module, with its adapters: the engine copies these alone."""
        return self.model

    def named_weights(self) -> Iterable[tuple[str, Tensor]]:
        """Return the policy's weights under the names of a saved folder; see `Backend.named_weights`."""
        if self.adapted is None:
            return as_saved(self.model, {name: p.detach() for name, p in self.model.named_parameters()}).items()
        return (named for block in self._saved_blocks() for named in block.items())

    def _saved_blocks(self) -> Iterator[dict[str, Tensor]]:
        """Return the weights of a policy with adapters by their names in a saved folder, block by block."""
        assert self.adapted is not None
        return map(partial(as_saved, self.adapted.twin), self.adapted.plain_blocks())

    def whole_model(self, only_first: bool = False) -> Any:
        """Return the policy's module itself; with adapters, a plain one that has them merged, made for this call."""
        if self.adapted is None:
            return self.model
        return Streamed(self.adapted.twin, self._saved_blocks, True) if only_first else self.adapted.plain_model()

    def save(self, folder: Path, save_model: Callable[[Any, Path], None], in_background: bool = False) -> None:
        """Write model and critic's backbone as Hugging Face folders, optimisers and reference as tensors."""
        if not self.ranks.is_first:  # all ranks hold the same
            return
        if self.adapted is None or not self.adapted.is_quantized:  # else it would be many times what adapters take
            save_model(self.whole_model(only_first=True), folder / "model")
        if self.adapted is not None:
            self.adapted.save(folder, True)
        state: dict[str, Any] = {"num_updates": self.num_updates, "total_steps": self.total_steps}
        if self.config is not None and self.optimizer is not None:
            state["config"] = self.config.model_dump()
            state["optimizer"] = self.optimizer.state_dict()
        if isinstance(self.reference, Adapted):
            state["reference_is_base"] = True
        elif self.reference is not None:
            state["reference"] = self._of_reference()
        if self.critic is not None:
            state["critic"] = self.critic.state_dict()
            if self.critic.model is not None:
                save_model(self.critic.model, folder / "critic")
        with (folder / "trainer.pt").open("wb") as file:  # given a path, torch hides a full disk's error
            torch.save(state, file)

    def load(self, folder: Path) -> None:
        """Restore optimisers, reference and critic; the model was loaded from `folder / "model"` before.

        Raises: CheckpointError if the saved state does not fit the model, or another backend wrote it.
        """
        require_written_by("torch", folder, "trainer.pt")
        # To the CPU: on the device, the reference would be there twice for a moment.
        state = torch.load(folder / "trainer.pt", map_location="cpu", weights_only=True)
        self._drop_stage_state()
        if self.adapted is not None:
            self.adapted.load(folder)
        try:
            if "config" in state:
                self.start(OptimizerConfig.model_validate(state["config"]), state["total_steps"])
                assert self.optimizer is not None
                self.optimizer.load_state_dict(state["optimizer"])
                self._check_moments(self.optimizer)
            if "reference" in state:
                self.reference = self._reference_with(state["reference"])
        except (ValueError, RuntimeError, KeyError) as exc:
            raise CheckpointError(f"{folder / 'trainer.pt'} does not fit the model: {exc}") from exc
        if state.get("reference_is_base"):
            self.reference = self.adapted
        if "critic" in state:
            self.critic = TorchCritic.restored(self.model, state["critic"], folder / "critic", self.ranks)
        self.num_updates = state["num_updates"]

    def _of_reference(self) -> dict[str, Tensor]:
        """Return the tensors of a reference that is a model, by name; of a snapshot its adapters: the base is ours."""
        tensors: dict[str, Tensor] = self.reference.state_dict()
        return {n: t for n, t in tensors.items() if is_factor(n)} if has_factors(tensors) else tensors

    @torch.no_grad()
    def _reference_with(self, tensors: dict[str, Tensor]) -> Any:
        """Return a frozen model with what `_of_reference` returned."""
        if not has_factors(tensors):
            reference = frozen_copy(self.model) if self.adapted is None else self.adapted.plain_model()
            reference.load_state_dict(tensors)
            return reference
        assert self.adapted is not None
        reference = self.adapted.snapshot()
        own = reference.state_dict()
        for name, tensor in tensors.items():
            own[name].copy_(tensor)
        return reference

    def _drop_stage_state(self) -> None:
        """Drop gradients, optimiser, reference and critic."""
        self.discard()
        self._detach_optimizer()
        self.config, self.optimizer, self.reference, self.critic = None, None, None, None

    def _detach_optimizer(self) -> None:
        """Remove the present optimiser's hooks from the parameters."""
        if isinstance(self.optimizer, Masters):
            self.optimizer.release()

    def _clear_policy_gradient(self) -> None:
        self.rerouted = Rerouted()
        for p in self.model.parameters():
            p.grad = None
        if self.optimizer is not None:
            self.optimizer.zero_grad()

    @staticmethod
    def _check_moments(optimizer: torch.optim.Optimizer) -> None:
        """Raise ValueError if a moment has another shape than its parameter, which torch would accept."""
        for parameter, state in optimizer.state.items():
            moment = state["exp_avg"] if "exp_avg" in state else state["state1"]  # torch's name, that of bitsandbytes
            if (shape := moment.shape) != parameter.shape:
                raise ValueError(f"a moment of shape {tuple(shape)} for a parameter of {tuple(parameter.shape)}")
