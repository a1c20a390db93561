"""The protocol of a training backend: the policy, its optimiser and its reference, wherever their shards are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.errors import CheckpointError, Unsupported
from verizero.pipeline.models.compiled import Compiling
from verizero.pipeline.models.forward import Layout, Replay, Targets, can_pack, logprobs_at
from verizero.pipeline.models.lora import EngineAdapters
from verizero.pipeline.models.routing import Rerouted
from verizero.pipeline.models.strictness import give_way
from verizero.pipeline.train.checkpoint import FinishWriting
from verizero.pipeline.train.ranks import Ranks
from verizero.pipeline.train.reward_model import RewardModel

T = TypeVar("T")
WhichModel = Literal["policy", "reference"]
NO_REPLAY = Replay()


def compiling_of(config: TrainConfig, device: torch.device) -> Compiling | None:
    """Return the setting for compiling blocks on that device, by `train.compile`; None: they are not compiled."""
    if config.compile == "on":
        return Compiling("on", config.deterministic)
    is_tried = config.compile == "auto" and device.type == "cuda" and config.sequence_parallel == 1
    is_tried = is_tried and config.kernels is None
    return Compiling("auto", config.deterministic) if is_tried else None


def require_written_by(backend: str, folder: Path, file: str) -> None:
    """Raise CheckpointError unless that backend wrote the checkpoint `folder`: then it has the file `file`."""
    if not (folder / file).exists():
        raise CheckpointError(
            f"{folder} was not written by train.backend={backend}; continue with the backend that wrote it, or start "
            f"a new run with model.path: {folder / 'model'}"
        )


class CriticBackend(Protocol):
    """A critic: values with gradient, and optimiser steps of its own."""

    total_steps: int
    """Updates that the schedule of its optimiser spans."""

    def values(self, input_ids: Tensor, where: Tensor, targets: Targets | None = None) -> Tensor:
        """Return V [B, T] of the states before the tokens at `where` (bool [B, T]), 0 elsewhere.

        `where` is False at column 0. `targets`: indices of the tokens at `where`, if they are known on the host.
        """
        ...

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient of one micro-batch's share of the value loss."""
        ...

    def require_finite(self) -> None:
        """Raise NonFiniteError if the gradient is not finite; the gradient stays."""
        ...

    def step(self) -> dict[str, float]:
        """Clip, update, delete the gradient; return gradient norm and learning rate."""
        ...

    def discard(self) -> None:
        """Delete the gradient."""
        ...


class Backend(Protocol):
    """Computes log-probs with gradient, takes optimiser steps, keeps the reference and, for some algorithms, a critic.

    Our backends inherit from it. What a backend need not be able to do has a body here, which raises `Unsupported`.
    """

    model: Any
    """The policy's module. Its weights may be shards; `whole_model` has them whole."""
    ranks: Ranks
    """The processes that train this policy together."""
    critic: CriticBackend | None
    """None before `start_critic`."""
    train_config: TrainConfig
    total_steps: int
    """Updates that the optimiser's schedule spans."""
    rerouted: Rerouted | None = None
    """Counts of the choices of experts that routers would have made differently; None: they are not counted."""
    compiling: Compiling | None = None
    """The setting for compiling blocks; None: they are not compiled."""

    @property
    def dtype(self) -> torch.dtype:
        """The number type of forward and backward. Weights may be kept in another one."""
        dtype: torch.dtype = self.model.dtype
        return dtype

    def start(self, optimizer: OptimizerConfig, total_steps: int) -> None:
        """Begin a stage: a fresh optimiser whose schedule spans `total_steps` updates."""
        ...

    def set_length(self, total_steps: int, critic_steps: int = 0) -> None:
        """Set the numbers of updates that the learning-rate schedules span, for a stage that continues."""
        self.total_steps = total_steps
        if self.critic is not None:
            self.critic.total_steps = critic_steps

    def start_critic(self, shared: bool, optimizer: OptimizerConfig, total_steps: int) -> None:
        """Make an untrained critic: a head on the policy's backbone if `shared`, else on a copy of it."""
        ...

    def compute(self, function: Callable[[Any], T], which: WhichModel = "policy") -> T:
        """Return function(module) for the module of the policy or of the reference.

        Where the policy's weights are shards, they are whole only while the module's own layers compute.
        """
        ...

    def logprobs(
        self,
        input_ids: Tensor,
        where: Tensor,
        temperature: float,
        which: WhichModel = "policy",
        entropy: bool = False,
        replay: Replay = NO_REPLAY,
        targets: Targets | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return log-probs [B, T] of the tokens at `where` (bool [B, T]), 0 elsewhere, and entropies if asked for.

        The policy's have a gradient outside `no_grad`. `replay.kept` cuts off the distributions of policy and reference
        as the sampling did; `replay.routing` is for the policy alone, a reference routes by itself. `targets`: indices
        of the tokens at `where`, if they are known on the host, and the layout of packed rows (only where `can_pack`).
        """
        give_way()  # a thread that decodes gets a step for each forward
        replay_of_model = replay if which == "policy" else Replay(replay.kept)
        layout = Layout(targets, self.train_config.logits_chunk_tokens, self.ranks.pieces)

        def compute(model: Any) -> tuple[Tensor, Tensor | None]:
            # Only training forwards are counted: each token once per update.
            rerouted = self.rerouted if torch.is_grad_enabled() else None
            return logprobs_at(
                model, input_ids, where, temperature, entropy, replay=replay_of_model, rerouted=rerouted, layout=layout
            )

        return self.compute(compute, which)

    def can_pack(self) -> bool:
        """True if the policy computes packed rows exactly, tried on its weights. Every rank must call it."""
        # A tensor, because DeepSpeed's hooks refuse a forward that returns a bool.
        return bool(self.compute(lambda model: torch.tensor(can_pack(model))))

    def changed_routes(self) -> dict[str, float]:
        """Return the metric of routers' changed choices in this update, if choices were counted."""
        counts = self.rerouted
        return {} if counts is None or not counts.total else {"routing/changed": counts.changed / counts.total}

    def not_compiled(self) -> dict[str, float]:
        """Return the number of models whose blocks could not be compiled, as a metric; empty if there are none."""
        fallbacks = [] if self.compiling is None else self.compiling.fallbacks
        return {"compile/fallbacks": float(len(fallbacks))} if fallbacks else {}

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient of one micro-batch's share of the loss."""
        ...

    def step(self) -> dict[str, float]:
        """Clip, update, delete the gradient; return gradient norm and learning rate.

        Raises: NonFiniteError if the gradient is not finite; weights and optimiser are as before, the gradient is gone.
        """
        ...

    def discard(self) -> None:
        """Delete the gradient, the critic's too."""
        ...

    def refresh_reference(self, alpha: float = 1.0) -> None:
        """Set reference <- alpha * policy + (1 - alpha) * reference; the first call makes a copy of the policy."""
        ...

    def replace_weights(self, model: Any) -> None:
        """Set the policy's weights to those of `model`, which was built as the first policy was."""
        self.model.load_state_dict(model.state_dict())

    def reward_model(
        self, optimizer: OptimizerConfig, total_steps: int, folder: Path | None = None, start: Path | None = None
    ) -> RewardModel:
        """Return an untrained reward model on the policy's blocks, or the one saved in `folder`.

        `start`: a Hugging Face folder whose classifier is continued with a fresh optimiser. Every rank must call it.
        Raises: ConfigError if transformers has no such classifier; CheckpointError.
        """
        if start is not None:
            return RewardModel.continued(start, optimizer, total_steps, self.train_config, self.model.device)
        if folder is None:
            return RewardModel.of(self.whole_model(), optimizer, total_steps, self.train_config)
        return RewardModel.restored(folder, optimizer, total_steps, self.train_config, self.model.device)

    def shard(self) -> None:
        """Divide the weights among ranks now, for a backend that divides them, to free memory for what is made next."""
        return None

    def whole_model(self, only_first: bool = False) -> Any:
        """Return a plain module with the policy's present weights; every rank must call this.

        If it is `engine_module`, it is always the same module; else it may be a temporary copy.
        `only_first`: only rank 0 needs it, to save it. It may then be in the CPU's memory. Other ranks get None, or a
        module that takes part in saving: a rank that gets a module must call its `save_pretrained`.
        """
        ...

    def engine_adapters(self, in_bits: bool) -> EngineAdapters | None:
        """Return the policy's adapters, for an engine that takes these alone; None: it takes merged weights.

        `in_bits`: the engine can take a quantised base in its bits.
        """
        return None

    def engine_module(self) -> Any:
        """Return the module whose weights an embedded engine copies at each publish; it is always the same."""
        return self.whole_model()

    def update_engine_module(self) -> None:
        """Update `engine_module`, if it is not the policy itself."""
        return None

    def named_weights(self) -> Iterable[tuple[str, Tensor]]:
        """Return the policy's whole weights by their names in a saved folder; all ranks must iterate in step.

        Divided weights are gathered some at a time. Tensors may be the policy's own: copy them to use them after the
        next update.
        """
        ...

    def save(
        self, folder: Path, save_model: Callable[[Any, Path], None], in_background: bool = False
    ) -> FinishWriting | None:
        """Write model (through `save_model`), optimiser, reference and critic into `folder`.

        `in_background`: part of it may be written later, from a copy, by a thread. Then return a function that waits
        for the end of that; it may be called in any thread.
        """
        ...

    def load(self, folder: Path) -> None:
        """Restore all that `save` wrote, bit for bit."""
        ...

    def set_optimizer(self, optimizer: OptimizerConfig) -> None:
        """Change learning rate, clipping and so on within a stage; schedule and moments stay.

        Raises: Unsupported by a backend that can set them at the start of a stage only.
        """
        raise Unsupported(
            f"{type(self).__name__} sets the optimiser as a stage starts; set train.backend: torch or fsdp"
        )
