"""Training with DeepSpeed: optimiser, gradients and weights are divided among ranks (ZeRO 0 to 3), or on the CPU.

Log-probs are computed in float32. `verizero.pipeline.train.sharded` says what is divided, and how it is saved.
"""

from __future__ import annotations

import copy
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.errors import RunError
from verizero.pipeline.models.load import frozen_copy, recompute_activations
from verizero.pipeline.models.lora import Adapted
from verizero.pipeline.models.saved_names import as_saved, filled, in_pieces, without_memory
from verizero.pipeline.train.backend import Backend, CriticBackend, T, WhichModel, require_written_by
from verizero.pipeline.train.critic import ShardedCritic, ShardedPolicyAccess, TorchCritic, own_backbone
from verizero.pipeline.train.optimizer import schedule
from verizero.pipeline.train.ranks import ALONE, Ranks
from verizero.pipeline.train.reference import as_base, refreshed
from verizero.pipeline.train.sharded import Sharded

UNTIL_START = OptimizerConfig(learning_rate=1e-6)
"""Settings of the optimiser until the first stage starts; `start` replaces all of them."""


class DeepSpeedBackend(Backend):
    """The policy, sharded from the first stage on, its reference and its critic."""

    def __init__(
        self,
        model: Any,
        config: TrainConfig,
        ranks: Ranks = ALONE,
        adapted: Adapted | None = None,
        engine_reads_module: bool = True,
        with_reference: bool = True,
    ) -> None:
        """`adapted`: the adapters in `model`, if they alone are trained.

        `engine_reads_module`: an engine reads weights from `whole_model`, so under ZeRO 3 a whole copy stays in memory
        next to the shards; else each call of `whole_model` makes one. `with_reference`: a stage may need a reference.
        """
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
        # A module with whole weights, to generate with and to save: the model itself until its weights are divided, or
        # a copy made before.
        self._whole = model
        if adapted is not None:
            self._whole = adapted.twin
        elif config.zero == 3 and engine_reads_module:
            self._whole = copy.deepcopy(model)
        self._whole_is_fresh = True
        self._empty: Any = None
        """A module on `meta` to fill with gathered weights, if no whole copy stays in memory."""
        if config.zero == 3 and adapted is None and not engine_reads_module:
            self._empty = without_memory(model)
        self._with_reference = with_reference
        self._spare: Any = None
        """Frozen copy of the initial policy, in case a stage needs a reference."""
        if config.gradient_checkpointing:
            recompute_activations(model)

    def start(self, optimizer: OptimizerConfig, total_steps: int) -> None:
        """Make a fresh optimiser for `total_steps` updates; the first call divides the weights among ranks."""
        self.config, self.total_steps, self.num_updates = optimizer, total_steps, 0
        self._shard(optimizer).restart(optimizer)

    def shard(self) -> None:
        """Divide the weights among ranks now, before `start`."""
        self._shard(UNTIL_START)

    def _shard(self, optimizer: OptimizerConfig) -> Sharded:
        if self.sharded is None:
            is_whole = self._whole is self.model and self._empty is None
            if self._with_reference and is_whole and self.reference is None:
                self._spare = frozen_copy(self.model)  # a later copy would have DeepSpeed's hooks
            self.sharded = Sharded(self.model, "gradient norm", optimizer, self.train_config, self.ranks)
        return self.sharded

    def start_critic(self, shared: bool, optimizer: OptimizerConfig, total_steps: int) -> None:
        """Make an untrained critic, sharded like the policy unless it shares the policy's backbone."""
        if shared:
            self.critic = TorchCritic(self.model, None, optimizer, total_steps, self.ranks, self._policy_access())
        else:
            model = own_backbone(self.whole_model())
            self.critic = ShardedCritic(model, optimizer, total_steps, self.train_config, self.ranks)

    def compute(self, function: Callable[[Any], T], which: WhichModel = "policy") -> T:
        """Return function(module) for the module of the policy or the reference; see `Backend.compute`."""
        self._place_reference(which)
        if which == "reference" and not isinstance(self.reference, Adapted):
            # The reference is a plain module, whole on every rank, without the engine and its hooks.
            return function(self.reference)
        with nullcontext() if which == "policy" else as_base(self.reference):
            result: T = self._run(function)
        return result

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient."""
        assert self.sharded is not None
        self.sharded.backward(loss)

    def step(self) -> dict[str, float]:
        """Take one AdamW update; see `Backend.step`."""
        assert self.config is not None
        assert self.sharded is not None
        rate = schedule(self.config, self.num_updates, self.total_steps)
        # Before the step, so that no error leaves a copy that counts as fresh and is not.
        self._whole_is_fresh = False
        norm = self.sharded.step(self.config, rate, self.num_updates)
        self.num_updates += 1
        return {"grad_norm": norm, "learning_rate": rate}

    def discard(self) -> None:
        """Delete the gradient, the critic's too."""
        if self.sharded is not None:
            self.sharded.discard()
        if self.critic is not None:
            self.critic.discard()

    def refresh_reference(self, alpha: float = 1.0) -> None:
        """Set reference <- alpha * policy + (1 - alpha) * reference, whole on every rank."""
        if not self._with_reference:
            raise RunError("the backend was made for stages without a reference, and one is asked for")
        if self.reference is None and self._spare is not None:
            # The spare has the initial weights; with alpha 1 they become the policy's.
            self.reference, self._spare, alpha = self._spare, None, 1.0
        if self.reference is None and self._empty is not None:
            self.reference = self.whole_model().eval().requires_grad_(False)  # made for this call: no second copy
            return
        self.reference = refreshed(self.reference, self.whole_model(), alpha, self.adapted, self._gathering)

    def update_engine_module(self) -> None:
        """Gather the weights of the whole copy, if there is one, or merge adapters."""
        if self._empty is None:
            self.whole_model()

    def named_weights(self) -> Iterable[tuple[str, Tensor]]:
        """Return the policy's weights under the names of a saved folder; see `Backend.named_weights`."""
        if self.sharded is not None and self.sharded.has_sharded_weights and self.adapted is None:
            return in_pieces(self.model, self.sharded.whole)
        model = self.whole_model()
        return as_saved(model, {name: p.detach() for name, p in model.named_parameters()}).items()

    @torch.no_grad()
    def whole_model(self, only_first: bool = False) -> Any:
        """Return the policy's module; under ZeRO 3 another one with gathered weights, see `__init__`."""
        if self._empty is not None and self.sharded is not None:
            if only_first and not self.ranks.is_first:
                deque(self.sharded.gathered(), 0)  # gathering needs every rank
                return None
            return filled(self._empty, self.sharded.gathered(), torch.device("cpu") if only_first else self._device)
        if self._whole is not self.model and not self._whole_is_fresh and self.sharded is not None:
            if self.adapted is not None:
                self.adapted.merge(self._gathering)
            else:
                targets = dict(self._whole.named_parameters())
                for name, weight in self.sharded.gathered():
                    targets[name].copy_(weight)
            self._whole_is_fresh = True
        return self._whole

    def save(self, folder: Path, save_model: Callable[[Any, Path], None], in_background: bool = False) -> None:
        """Write the model as a Hugging Face folder; master weights, moments, reference and critic in other files."""
        whole = self.whole_model(only_first=True)  # every rank must call this, and all below until the early return
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
        """Restore master weights, moments, reference and critic; the model was loaded from `folder / "model"` before.

        Raises: CheckpointError if the saved state does not fit the model, or another backend wrote it.
        """
        require_written_by("deepspeed", folder, "deepspeed.json")
        state = json.loads((folder / "deepspeed.json").read_text())
        if self.adapted is not None:
            self.adapted.load(folder)
            self.adapted.merge()
        if state["reference_is_base"]:
            self.reference = self.adapted
        if (folder / "reference.pt").exists():
            # Before `start`, which puts DeepSpeed's hooks on the model.
            self.reference = frozen_copy(self.whole_model())
            # To the CPU, page by page: the file names rank 0's GPU, to which every rank would read it.
            saved = torch.load(folder / "reference.pt", map_location="cpu", mmap=True, weights_only=True)
            self.reference.load_state_dict(saved)
        if "config" in state:
            self.start(OptimizerConfig.model_validate(state["config"]), state["total_steps"])
            assert self.sharded is not None
            self.sharded.read(folder, state["files"], state["num_updates"])
        self.num_updates = state["num_updates"]
        if (folder / "critic.pt").exists():
            saved = torch.load(folder / "critic.pt", map_location=self.model.device, weights_only=True)
            self.critic = TorchCritic.restored(self.model, saved, folder / "critic", self.ranks, self._policy_access())
        elif (folder / "critic").is_dir():
            self.critic = ShardedCritic.restored(folder, self._whole, self.train_config, self.ranks)

    @property
    def _device(self) -> torch.device:
        """The device that computes; weights of ZeRO 3 may be kept on another."""
        device: torch.device = self._whole.device
        return device

    @contextmanager
    def _gathering(self, *parameters: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Yield the parameters, which are whole within the block."""
        with nullcontext() if self.sharded is None else self.sharded.whole(*parameters):
            yield parameters

    def _run(self, compute: Callable[[Any], Any]) -> Any:
        return compute(self.model) if self.sharded is None else self.sharded.run(compute)

    def _policy_access(self) -> ShardedPolicyAccess:
        """Return the policy's forward and backward for a critic that shares its backbone."""
        assert self.sharded is not None
        return ShardedPolicyAccess(self._run, self.backward, self.sharded.scale)

    def _place_reference(self, which: WhichModel) -> None:
        """Move the reference to the CPU's memory while others compute, if the recipe offloads everything."""
        if self.reference is None or isinstance(self.reference, Adapted) or self.train_config.offload == "none":
            return
        device = self._device if which == "reference" else torch.device("cpu")
        if self.reference.device != device:
            self.reference.to(device)
