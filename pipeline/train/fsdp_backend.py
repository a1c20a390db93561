"""Training with torch's FSDP2: weights, gradients, optimiser, reference and critic are divided among all ranks.

Master weights are float32 whatever the model's type, on a single rank too. `fsdp_shards.py` has one divided module.
With an engine that needs no module (vLLM), no rank ever has the whole model in memory.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.models.adapted_layers import plain_name
from verizero.pipeline.models.compiled import compile_blocks
from verizero.pipeline.models.fingerprint import hashed, sum_of_bits
from verizero.pipeline.models.lora import Adapted, EngineAdapters, is_factor
from verizero.pipeline.models.quantized import divisible, with_rest
from verizero.pipeline.models.routing import Rerouted
from verizero.pipeline.models.saved_names import as_saved, filled, without_memory
from verizero.pipeline.models.streamed import Streamed
from verizero.pipeline.models.unloaded import weights_of
from verizero.pipeline.train.backend import Backend, CriticBackend, T, WhichModel, compiling_of, require_written_by
from verizero.pipeline.train.checkpoint import FinishWriting
from verizero.pipeline.train.critic import ShardedPolicyAccess, TorchCritic
from verizero.pipeline.train.fsdp_classifier import FsdpCritic, FsdpRewardModel
from verizero.pipeline.train.fsdp_offload import OffloadedShards
from verizero.pipeline.train.fsdp_shards import FsdpShards, own_group, read_tensors, whole, write_tensors
from verizero.pipeline.train.optimizer import schedule
from verizero.pipeline.train.ranks import ALONE, Ranks
from verizero.pipeline.train.reference import as_base
from verizero.pipeline.train.reward_model import RewardModel

STATE, SHARDS = "fsdp.json", "shards"


class FsdpBackend(Backend):
    """The policy, its reference and its critic, divided from the beginning on."""

    def __init__(
        self,
        model: Any,
        config: TrainConfig,
        ranks: Ranks = ALONE,
        adapted: Adapted | None = None,
        engine_reads_module: bool = True,
        device: torch.device | None = None,
    ) -> None:
        """Divide a copy of `model`, which is whole, or on `meta` with its weights in files (`models.unloaded`).

        `adapted`: the adapters in `model`, if they alone are trained; then `model` itself is divided, and its merged
        twin is empty. `engine_reads_module`: an engine reads from `whole_model`, so a whole copy stays in memory.
        """
        self.ranks = ranks
        self.train_config = config
        self._dtype: torch.dtype = model.dtype
        self.device = device or model.device
        self.adapted = adapted
        self.compiling = compiling_of(config, self.device)
        self._empty = without_memory(model if adapted is None else adapted.twin)
        """A module on `meta`, of which all divided modules and the whole copy are made."""
        self._engine_reads_module = engine_reads_module
        self._in_bits: Any = None
        """A copy with adapters for an engine that reads a module, whole on each rank, of a quantised base."""
        if adapted is None:
            self.sharded = self._divided("gradient norm")
            self.sharded.take(model)
        else:
            self.sharded = self._divided_in_place(model, adapted)
        self.model = self.sharded.model
        self.reference: FsdpShards | Adapted | None = None
        self.critic: CriticBackend | None = None
        self.config: OptimizerConfig | None = None
        self.total_steps = 0
        self.num_updates = 0
        self.rerouted = Rerouted()
        self._writers: Any = None
        """The process group for writing shards in the background."""
        self._whole: Any = None
        self._keeps_whole = engine_reads_module and self._in_bits is None
        self._whole_is_fresh = False

    @property
    def dtype(self) -> torch.dtype:
        """The number type of forward and backward; the shards are float32."""
        return self._dtype

    def start(self, optimizer: OptimizerConfig, total_steps: int) -> None:
        """Make a fresh optimiser for `total_steps` updates; drop reference and critic of an earlier stage."""
        self.reference = self.critic = None
        self.config, self.total_steps, self.num_updates = optimizer, total_steps, 0
        self.sharded.restart(optimizer)

    def start_critic(self, shared: bool, optimizer: OptimizerConfig, total_steps: int) -> None:
        """Make an untrained critic, divided like the policy unless it shares the policy's backbone."""
        if shared:
            self.critic = TorchCritic(self.model, None, optimizer, total_steps, self.ranks, self._policy_access())
        else:
            self.critic = FsdpCritic(self.sharded, self._divided, self._copy_to, optimizer, total_steps)

    def compute(self, function: Callable[[Any], T], which: WhichModel = "policy") -> T:
        """Return function(module) for the module of the policy or the reference; see `Backend.compute`."""
        shards = self.reference if which == "reference" and isinstance(self.reference, FsdpShards) else self.sharded
        with nullcontext() if which == "policy" else as_base(self.reference):
            result: T = shards.run(function)
        return result

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient."""
        self.sharded.backward(loss)

    def step(self) -> dict[str, float]:
        """Take one AdamW update; see `Backend.step`."""
        assert self.config is not None
        rate = schedule(self.config, self.num_updates, self.total_steps)
        norm = self.sharded.step(self.config, rate, self.num_updates)
        self._whole_is_fresh = False
        self.num_updates += 1
        metrics = {"grad_norm": norm, "learning_rate": rate, **self.changed_routes(), **self.not_compiled()}
        self.rerouted = Rerouted()
        return metrics

    def discard(self) -> None:
        """Delete the gradient, the critic's too."""
        self.rerouted = Rerouted()
        self.sharded.discard()
        if self.critic is not None:
            self.critic.discard()

    def set_optimizer(self, optimizer: OptimizerConfig) -> None:
        """Use other settings of the optimiser from the next update on."""
        self.config = optimizer

    @torch.no_grad()
    def refresh_reference(self, alpha: float = 1.0) -> None:
        """Set reference <- alpha * policy + (1 - alpha) * reference, each rank its own rows."""
        if self.reference is None and self.adapted is not None and self.adapted.is_fresh(whole):
            self.reference = self.adapted  # the policy without its adapters, which takes no memory
            return
        if self.reference is None:
            self.reference, alpha = self._frozen(), 1.0
        elif isinstance(self.reference, Adapted):
            self.reference = self._frozen()
            self.reference.take_blocks(self._plain_blocks(learned=False))
        self._copy_to(self.reference, alpha)

    def replace_weights(self, model: Any) -> None:
        """Set the policy's weights to those of `model`, each rank its own rows."""
        self.sharded.take(model)
        self._whole_is_fresh = False

    def reward_model(
        self, optimizer: OptimizerConfig, total_steps: int, folder: Path | None = None, start: Path | None = None
    ) -> RewardModel:
        """Return a divided reward model; see `Backend.reward_model`."""
        divide, fill, config = self._divided, self._copy_to, self.train_config
        model = FsdpRewardModel(self.sharded, divide, fill, self.dtype, optimizer, total_steps, config)
        if start is not None:
            model.take(start)
        if folder is not None:
            model.load(folder)
        return model

    def engine_module(self) -> Any:
        """Return the whole copy: of a quantised base its bits, with the adapters next to them."""
        return self.whole_model() if self._in_bits is None else self._in_bits

    @torch.no_grad()
    def update_engine_module(self) -> None:
        """Gather the weights of the whole copy, if there is one; of a quantised base the adapters alone."""
        if self._keeps_whole:
            self.whole_model()
        if self._in_bits is not None:
            targets = dict(self._in_bits.named_parameters())
            for name, p in self.model.named_parameters():
                if is_factor(name):
                    with whole(p) as (full,):
                        targets[name].copy_(full)

    def engine_adapters(self, in_bits: bool) -> EngineAdapters | None:
        """Return the adapters, gathered as an engine takes them; see `Backend.engine_adapters`."""
        adapted, blocks = self.adapted, partial(self._plain_blocks, False)
        return None if adapted is None else adapted.for_engine(blocks, in_bits, whole)

    def named_weights(self) -> Iterable[tuple[str, Tensor]]:
        """Return the policy's weights under the names of a saved folder, gathered block by block."""
        for block in self._blocks():
            yield from block.items()
            del block  # before the next one comes

    @torch.no_grad()
    def whole_model(self, only_first: bool = False) -> Any:
        """Return a whole module; with `only_first` a `Streamed`, whose `save_pretrained` every rank must call."""
        if only_first:
            return Streamed(self._empty, self._blocks, self.ranks.is_first)
        if self._whole is None or not self._whole_is_fresh:
            weights = ((n, w) for block in self._plain_blocks() for n, w in block.items())
            if self._whole is None:
                model = filled(self._empty, weights, self.device).eval()
                if not self._keeps_whole:
                    return model
                self._whole = model
            else:
                targets = dict(self._whole.named_parameters())
                for name, weight in weights:
                    targets[name].copy_(weight)
            self._whole_is_fresh = True
        return self._whole

    def save(
        self, folder: Path, save_model: Callable[[Any, Path], None], in_background: bool = False
    ) -> FinishWriting | None:
        """Write the model as a Hugging Face folder, and all shards, each rank its own."""
        if self.adapted is None or not self.adapted.is_quantized:  # else it would be many times what adapters take
            save_model(self.whole_model(only_first=True), folder / "model")
        if self.adapted is not None:
            self.adapted.save(folder, self.ranks.is_first, whole)
        if in_background and self._writers is None:
            self._writers = own_group()
        with self._reference_on_device():
            group = self._writers if in_background else None
            finish_writing = write_tensors(self._tensors(), folder / SHARDS, group)
        if not self.ranks.is_first:
            return finish_writing
        state: dict[str, Any] = {
            "num_updates": self.num_updates,
            "total_steps": self.total_steps,
            "config": None if self.config is None else self.config.model_dump(),
            "has_reference": isinstance(self.reference, FsdpShards),
            "reference_is_base": isinstance(self.reference, Adapted),
            "critic": self.critic.metadata() if isinstance(self.critic, FsdpCritic) else None,
        }
        (folder / STATE).write_text(json.dumps(state))
        if isinstance(self.critic, TorchCritic):
            torch.save(self.critic.state_dict(), folder / "critic.pt")
        return finish_writing

    def load(self, folder: Path) -> None:
        """Restore all that `save` wrote; any number of ranks may have written it.

        Raises: CheckpointError if the saved state does not fit the model, or another backend wrote it.
        """
        require_written_by("fsdp", folder, STATE)
        state = json.loads((folder / STATE).read_text())
        if self.adapted is not None:
            self.adapted.check_base(folder)
        if state["config"] is not None:
            self.start(OptimizerConfig.model_validate(state["config"]), state["total_steps"])
        else:
            self.reference = self.critic = None
        if state["has_reference"]:
            self.reference = self._frozen()
        elif state["reference_is_base"]:
            self.reference = self.adapted
        if (metadata := state["critic"]) is not None:
            optimizer = OptimizerConfig.model_validate(metadata["config"])
            self.critic = FsdpCritic(self.sharded, self._divided, self._copy_to, optimizer, metadata["total_steps"])
            self.critic.num_updates = metadata["num_updates"]
        self.num_updates = state["num_updates"]
        with self._reference_on_device():
            read_tensors(self._tensors(), folder / SHARDS)
        if self.config is not None:
            self.sharded.set_step(self.num_updates)
        if isinstance(self.critic, FsdpCritic):
            self.critic.sharded.set_step(self.critic.num_updates)
        if (folder / "critic.pt").exists():
            saved = torch.load(folder / "critic.pt", map_location=self.device, weights_only=True)
            self.critic = TorchCritic.restored(self.model, saved, folder / "critic", self.ranks, self._policy_access())
        self._whole_is_fresh = False

    def _tensors(self) -> dict[str, Any]:
        """Return all shards of a checkpoint, by name."""
        tensors = self.sharded.tensors()
        if isinstance(self.reference, FsdpShards):
            tensors |= {f"reference/{name}": t for name, t in self.reference.tensors().items()}
        if isinstance(self.critic, FsdpCritic):
            tensors |= {f"critic/{name}": t for name, t in self.critic.sharded.tensors().items()}
        return tensors

    @property
    def _offloads(self) -> bool:
        return self.train_config.offload != "none"

    def _policy_access(self) -> ShardedPolicyAccess:
        """Return the policy's forward and backward for a critic that shares its backbone."""
        return ShardedPolicyAccess(self.sharded.run, self.sharded.backward, 1, self.dtype)

    def _divided(self, whose: str, model: Any = None) -> FsdpShards:
        """Divide `model`, or a copy of the empty policy, in float32; its weights are not set yet."""
        module = (copy.deepcopy(self._empty) if model is None else model).float()
        recompute = self.train_config.gradient_checkpointing
        half = None if self.dtype == torch.float32 else self.dtype
        module.eval().requires_grad_(True)
        compile_blocks(module, self.compiling)
        return FsdpShards(module, whose, self.ranks, half, self.device, recompute, self._offloads)

    def _frozen(self) -> FsdpShards:
        """Return a divided copy of the empty policy, in its own number type, that takes no gradient."""
        module = copy.deepcopy(self._empty).eval().requires_grad_(False)
        compile_blocks(module, self.compiling)
        kind = OffloadedShards if self._offloads else FsdpShards
        return kind(module, "reference", self.ranks, None, self.device, False)

    def _reference_on_device(self) -> AbstractContextManager[None]:
        """Return a context in which the weights of a divided reference are on the device."""
        return self.reference.on_device() if isinstance(self.reference, FsdpShards) else nullcontext()

    def _divided_in_place(self, model: Any, adapted: Adapted) -> FsdpShards:
        """Divide a model with adapters in place, because `adapted` refers to its modules. Number types stay."""
        values, files = {}, None if adapted.is_quantized else weights_of(model)
        if files is not None:
            values = {name: p.detach() for name, p in model.named_parameters() if p.device.type != "meta"}
            for layer in adapted.layers.values():
                layer.lora_A.to("meta")
                layer.lora_B.to("meta")

        def read(part: Any) -> None:
            adapted.read(part)
            divisible(part)

        if adapted.is_quantized and self._engine_reads_module:
            adapted.read()
            self._in_bits = adapted.trainable_copy()
        how = self.device, self.train_config.gradient_checkpointing, self._offloads
        compile_blocks(model, self.compiling)
        sharded = FsdpShards(
            model.eval(), "gradient norm", self.ranks, None, *how, read if adapted.is_quantized else None
        )
        if files is not None:
            sharded.read(files, plain_name, values)
        if adapted.is_quantized:  # the fingerprint is that of the base's numbers, before they were put in bits
            for layer in model.modules():
                with_rest(layer._parameters.get("weight"), layer)
            return sharded
        base = [(n, p) for n, p in sharded.model.named_parameters() if not is_factor(n)]
        sums = self.ranks.all_reduce(torch.stack([sum_of_bits(p.to_local()) for _, p in base])).tolist()
        adapted.base = hashed((plain_name(n), p.shape, total) for (n, p), total in zip(base, sums, strict=True))
        return sharded

    def _copy_to(self, shards: FsdpShards, share: float = 1.0) -> None:
        """Set the weights of `shards` that the policy also has to share * policy + (1 - share) * weights."""
        if self.adapted is None:
            shards.take(self.sharded, share)
        else:
            shards.take_blocks(self._plain_blocks(), share)

    def _plain_blocks(self, learned: bool = True, in_bits: bool = False) -> Iterator[dict[str, Tensor]]:
        """Return the policy's weights, adapters merged, by the names of a module without adapters, block by block."""
        if self.adapted is None:
            return self.sharded.gathered(self.dtype)
        return map(partial(self.adapted.merged, learned=learned, in_bits=in_bits), self.sharded.gathered())

    def _blocks(self) -> Iterator[dict[str, Tensor]]:
        """Return the policy's weights by their names in a saved folder, block by block."""
        return map(partial(as_saved, self._empty), self._plain_blocks())
