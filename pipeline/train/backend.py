"""A training backend: the policy with its optimiser, its reference and, for some algorithms, a critic.

Where their weights are, whole in every process or divided among ranks, is a matter of `Trained` (`trained.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.errors import CheckpointError, boundary
from verizero.pipeline.models.compiled import Compiling
from verizero.pipeline.models.forward import Layout, Replay, Targets, can_pack, logprobs_at
from verizero.pipeline.models.load import ready
from verizero.pipeline.models.lora import Adapted, EngineAdapters, has_factors, is_factor
from verizero.pipeline.models.routing import Rerouted
from verizero.pipeline.models.saved_names import as_saved, filled, without_memory
from verizero.pipeline.models.scalar_head import Head, with_scalar_head
from verizero.pipeline.models.streamed import Streamed
from verizero.pipeline.models.strictness import give_way
from verizero.pipeline.train.checkpoint import FinishWriting
from verizero.pipeline.train.critic import CRITIC, Critic, load_backbone, no_critic_message
from verizero.pipeline.train.ranks import ALONE, Ranks
from verizero.pipeline.train.reward_model import (
    NORM,
    AdaptedRewardModel,
    RewardModel,
    classifier_in,
    no_reward_model_message,
)
from verizero.pipeline.train.torch_trained import TorchTrained, torch_policy
from verizero.pipeline.train.trained import REFERENCE, Trained

T = TypeVar("T")
WhichModel = Literal["policy", "reference"]
NO_REPLAY = Replay()
DEFAULTS = TrainConfig()


class Backend:
    """Computes log-probs with gradient, takes optimiser steps, keeps the reference and, for some algorithms, a critic.

    All ranks must call every method.
    """

    def __init__(
        self,
        model: Any,
        config: TrainConfig = DEFAULTS,
        ranks: Ranks = ALONE,
        adapted: Adapted | None = None,
        engine_reads_module: bool = True,
        device: torch.device | None = None,
    ) -> None:
        """Train `model` by `config.backend`; it is whole, or with FSDP on `meta` with its weights in files.

        `adapted`: the adapters in `model`, if they alone are trained; its merged twin is empty. `engine_reads_module`:
        an engine reads from `engine_module`, so where weights are divided a whole copy stays in memory.
        """
        self.ranks = ranks
        self.train_config = config
        self.adapted = adapted
        self.compiling: Compiling | None = compiling_of(config, device or model.device)
        """The setting for compiling blocks; None: they are not compiled."""
        self._in_bits: Any = None
        """A copy with adapters, whole on each rank, for an engine that reads a module of a divided base in bits."""
        divides = config.backend in ("fsdp", "deepspeed")
        self._empty = without_memory(model) if divides else model
        """The names and shapes of a plain policy: on `meta`, or the policy itself."""
        if adapted is not None:
            self._empty = adapted.twin
            if adapted.is_quantized and divides and engine_reads_module:
                adapted.read()
                self._in_bits = adapted.trainable_copy()
        self.policy = self._trained(model, device)
        self.model: Any = self.policy.model
        """The policy's module. Its weights may be shards; `whole_model` has them whole."""
        self.reference: Trained | Adapted | None = None
        """None: there is no reference. `adapted` itself: the policy with its adapters switched off."""
        self.critic: Critic | None = None
        self.rerouted = Rerouted()
        """Counts of the choices of experts that routers would have made differently."""
        self._whole: Any = None
        self._keeps_whole = engine_reads_module and self.policy.is_divided and self._in_bits is None
        self._whole_is_fresh = False

    def _trained(self, model: Any, device: torch.device | None) -> Trained:
        """Return the policy as the recipe's backend trains it."""
        config, ranks, adapted = self.train_config, self.ranks, self.adapted
        if config.backend == "fsdp":
            from verizero.pipeline.train.fsdp_trained import fsdp_policy

            return fsdp_policy(model, config, ranks, adapted, self.compiling, device or model.device)
        if config.backend == "deepspeed":
            from verizero.pipeline.train.deepspeed_trained import deepspeed_policy

            return deepspeed_policy(model, config, ranks)
        return torch_policy(model, config, ranks, adapted, self.compiling)

    @property
    def dtype(self) -> torch.dtype:
        """The number type of forward and backward. Weights may be kept in another one."""
        return self.policy.dtype

    @property
    def num_updates(self) -> int:
        """Updates of the policy in this stage."""
        return self.policy.num_updates

    def start(self, optimizer: OptimizerConfig, total_steps: int) -> None:
        """Begin a stage: a fresh optimiser whose schedule spans `total_steps` updates, no reference and no critic."""
        self.reference = self.critic = None
        self.policy.start(optimizer, total_steps)

    def start_critic(self, shared: bool, optimizer: OptimizerConfig, total_steps: int) -> None:
        """Make an untrained critic: a head on the policy's backbone if `shared`, else on a copy of it.

        Raises: ConfigError if transformers has no token classifier of this architecture.
        """
        if shared:
            self.critic = Critic.on(self.policy)
        else:
            what = no_critic_message(self.model)
            self.critic = Critic(self._classifier("TokenClassification", CRITIC, what))
        self.critic.trained.start(optimizer, total_steps)

    def reward_model(
        self, optimizer: OptimizerConfig, total_steps: int, folder: Path | None = None, start: Path | None = None
    ) -> RewardModel:
        """Return an untrained reward model on the policy's blocks, or the one saved in `folder`.

        `start`: a Hugging Face folder whose classifier is continued with a fresh optimiser. On a quantised base that is
        whole, adapters of its own train. Raises: ConfigError if transformers has no such classifier; CheckpointError.
        """
        made: RewardModel
        how = optimizer, total_steps, self.train_config
        what = no_reward_model_message(self.model)
        if self.adapted is not None and self.adapted.is_quantized and self._is_torchs:
            made = on_bits = AdaptedRewardModel(self.adapted, *how)
            if start is not None:
                on_bits.take(start)
        elif self.policy.divides_classifiers:
            made = RewardModel(self._classifier("SequenceClassification", NORM, what), *how)
            if start is not None:
                made.trained.take(classifier_in(start))
        else:
            saved = start if folder is None else folder / "model"
            if saved is None:
                model = with_scalar_head(self.whole_model(), "SequenceClassification", what)
            else:
                model = ready(classifier_in(saved)).to(self.policy.device)
            made = RewardModel(TorchTrained(model, NORM, ALONE), *how)
        if folder is not None:
            made.load(folder)
        return made

    def compute(self, function: Callable[[Any], T], which: WhichModel = "policy") -> T:
        """Return function(module) for the module of the policy or of the reference.

        Where the policy's weights are shards, they are whole only while the module's own layers compute.
        """
        self._place_reference(which == "reference")
        result: T
        if which == "policy":
            result = self.policy.run(function)
        elif isinstance(self.reference, Adapted):
            with self.reference.without():
                result = self.policy.run(function)
        else:
            assert self.reference is not None
            result = self.reference.run(function)
        return result

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
        layout = Layout(targets, self.train_config.logits_chunk_tokens)

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

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient of one micro-batch's share of the loss."""
        self.policy.backward(loss)

    def step(self) -> dict[str, float]:
        """Clip, update, delete the gradient; return its norm, the learning rate, and what was counted on the way.

        Raises: NonFiniteError if the gradient is not finite; weights and optimiser are as before, the gradient is gone.
        """
        self._whole_is_fresh = False  # before the step, so that no error leaves a copy that counts as fresh and is not
        norm, rate = self.policy.step()
        metrics = {"grad_norm": norm, "learning_rate": rate}
        if self.rerouted.total:
            metrics["routing/changed"] = self.rerouted.changed / self.rerouted.total
        if self.compiling is not None and self.compiling.fallbacks:
            metrics["compile/fallbacks"] = float(len(self.compiling.fallbacks))
        self.rerouted = Rerouted()
        return metrics

    def discard(self) -> None:
        """Delete the gradient, the critic's too."""
        self.rerouted = Rerouted()
        self.policy.discard()
        if self.critic is not None:
            self.critic.discard()

    @torch.no_grad()
    def refresh_reference(self, alpha: float = 1.0) -> None:
        """Set reference <- alpha * policy + (1 - alpha) * reference; the first call makes a copy of the policy.

        With untrained adapters the first reference is `adapted` itself, the policy without them, which costs no memory.
        """
        adapted, before = self.adapted, self.reference
        if before is None and adapted is not None and adapted.is_fresh(self.policy.whole):
            self.reference = adapted
        elif adapted is not None and self._is_torchs and (before is None or alpha == 1):
            self.reference = self._snapshot(adapted)
        elif before is None:
            self.reference = self.policy.frozen(self._empty, self._plain_blocks())
        else:
            self._place_reference(True)
            # A mean of two pairs of adapters is none of their products, so it is made of whole weights.
            if isinstance(before, Adapted):
                before = self.policy.frozen(self._empty, self._plain_blocks(learned=False))
            elif adapted is not None and has_factors(n for n, _ in before.model.named_parameters()):
                before = self.policy.frozen(self._empty, adapted.plain_blocks(before.model))
            self._copy_to(before, alpha)
            self.reference = before
        self._place_reference(False)

    @property
    def _is_torchs(self) -> bool:
        """True if each process has the whole policy, and can copy it as it is."""
        return isinstance(self.policy, TorchTrained)

    def _snapshot(self, adapted: Adapted) -> Trained:
        """Return the present policy with its adapters as a reference, which takes the memory of the adapters alone."""
        return TorchTrained(adapted.snapshot(), REFERENCE, self.ranks)

    def _place_reference(self, is_used: bool) -> None:
        """Move the reference to the CPU's memory while others compute, if the recipe offloads."""
        reference = self.reference
        if reference is not None and not isinstance(reference, Adapted) and self.train_config.offload != "none":
            reference.place(is_used)

    def replace_weights(self, model: Any) -> None:
        """Set the policy's weights to those of `model`, which was built as the first policy was."""
        self.policy.take(model)
        self._whole_is_fresh = False

    @torch.no_grad()
    def whole_model(self, only_first: bool = False) -> Any:
        """Return a plain module with the policy's present weights; every rank must call this.

        If it is `engine_module`, it is always the same module; else it may be a temporary copy.
        `only_first`: only rank 0 needs it, to save it. Other ranks get None, or a `Streamed` that takes part in saving:
        a rank that gets one must call its `save_pretrained` and its `finish`.
        """
        if self.adapted is None and not self.policy.is_divided:
            return self.model
        if only_first:
            takes_part = self.policy.is_divided or self.ranks.is_first
            writers = self.ranks.size if self.policy.all_write else 1
            return Streamed(self._empty, self._blocks, self.ranks.rank, writers) if takes_part else None
        if self._whole is None or not self._whole_is_fresh:
            weights = ((n, w) for block in self._plain_blocks() for n, w in block.items())
            if self._whole is None:
                model = filled(self._empty, weights, self.policy.device).eval()
                if not self._keeps_whole:
                    return model
                self._whole = model
            else:
                targets = dict(self._whole.named_parameters())
                for name, weight in weights:
                    targets[name].copy_(weight)
            self._whole_is_fresh = True
        return self._whole

    def engine_module(self) -> Any:
        """Return the module whose weights an embedded engine copies at each publish; it is always the same.

        It may have adapters next to their base: the engine copies these alone.
        """
        if self._in_bits is not None:
            return self._in_bits
        return self.whole_model() if self.policy.is_divided else self.model

    @torch.no_grad()
    def update_engine_module(self) -> None:
        """Update `engine_module`, if it is not the policy itself."""
        if self._keeps_whole:
            self.whole_model()
        if self._in_bits is not None:
            targets = dict(self._in_bits.named_parameters())
            for name, p in self.model.named_parameters():
                if is_factor(name):
                    with self.policy.whole(p) as (full,):
                        targets[name].copy_(full)

    def engine_adapters(self) -> EngineAdapters | None:
        """Return the policy's adapters, for an engine that takes these alone; None: it takes merged weights."""
        if self.adapted is None or not self.policy.gives_adapters:
            return None
        return self.adapted.for_engine(partial(self._plain_blocks, False), self.policy.whole)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the policy's whole weights by their names in a saved folder; all ranks must iterate in step.

        Divided weights are gathered some at a time. Tensors may be the policy's own: copy them to use them after the
        next update.
        """
        for block in self._blocks():
            yield from block.items()
            del block  # before the next one comes

    def save(
        self, folder: Path, save_model: Callable[[Any, Path], None], in_background: bool = False
    ) -> FinishWriting | None:
        """Write the model (through `save_model`), optimiser, reference and critic into `folder`.

        `in_background`: part of it may be written later, from a copy, by a thread. Then return a function that waits
        for the end of that; it may be called in any thread.
        """
        finish_model: Callable[[], list[Path]] = list
        if self.adapted is None or not self.adapted.is_quantized:  # else it would be many times what adapters take
            model = self.whole_model(only_first=True)
            if model is not None and (self.ranks.is_first or isinstance(model, Streamed)):
                save_model(model, folder / "model")
            if isinstance(model, Streamed):
                finish_model = model.finish
        if self.adapted is not None:
            self.adapted.save(folder, self.ranks.is_first, self.policy.whole)
        policy, critic = self.policy, self.critic
        parts: dict[str, Trained] = {}
        if self.reference is not None and not isinstance(self.reference, Adapted):
            parts["reference"] = self.reference
        if critic is not None:
            parts["critic"] = critic.trained
        state: dict[str, Any] = {
            "has_reference": "reference" in parts,
            "reference_is_base": isinstance(self.reference, Adapted),
            "critic": None if critic is None else {"shared": critic.is_shared, **critic.trained.metadata()},
        }
        self._place_reference(True)
        finish_writing = policy.write(folder, state, parts, in_background, finish_model)
        self._place_reference(False)
        return finish_writing

    def load(self, folder: Path) -> None:
        """Restore all that `save` wrote, bit for bit; the model was loaded from `folder / "model"` before.

        Raises: CheckpointError if the saved state does not fit the model, or another backend wrote it.
        """
        state = self.policy.read_state(folder)
        self.discard()
        self.policy.stop()
        self.reference = self.critic = None
        if self.adapted is not None:
            self.policy.read_adapters(self.adapted, folder)
        if state["config"] is not None:
            self.start(OptimizerConfig.model_validate(state["config"]), state["total_steps"])
        self.policy.read(folder, state)
        self.policy.num_updates = state["num_updates"]
        self._whole_is_fresh = False
        if state["has_reference"]:
            self.reference = self._saved_reference(folder, state)
            self._place_reference(False)
        elif state["reference_is_base"]:
            self.reference = self.adapted
        if state["critic"] is not None:
            with boundary(CheckpointError, f"the critic of {folder} does not fit the policy"):
                self.critic = self._saved_critic(folder, state)

    def _saved_reference(self, folder: Path, state: dict[str, Any]) -> Trained:
        """Return the reference of a checkpoint."""
        adapted = self.adapted
        if adapted is not None and self._is_torchs and has_factors(state["whole"]["reference"]):
            reference = self._snapshot(adapted)
        else:
            reference = self.policy.frozen(self._empty, self._plain_blocks())
        reference.read(folder, state, "reference")
        return reference

    def _saved_critic(self, folder: Path, state: dict[str, Any]) -> Critic:
        """Return the critic of a checkpoint."""
        saved = state["critic"]
        if saved["shared"]:
            critic = Critic.on(self.policy)
        elif (folder / "critic").is_dir():
            critic = Critic(self.policy.like(load_backbone(folder / "critic", self.model), CRITIC))
        else:
            critic = Critic(self._classifier("TokenClassification", CRITIC, no_critic_message(self.model)))
        critic.trained.start(OptimizerConfig.model_validate(saved["config"]), saved["total_steps"])
        critic.trained.read(folder, state, "critic")
        return critic

    def _classifier(self, head: Head, whose: str, what: str) -> Trained:
        """Return a classifier of one label on a copy of the policy's blocks, trained as the policy is."""
        return self.policy.classifier(head, whose, what, self.whole_model, self._copy_to)

    def _copy_to(self, trained: Trained, share: float = 1.0) -> None:
        """Set the weights of `trained` that the policy also has to share * policy + (1 - share) * weights."""
        if self.adapted is None:
            trained.take(self.policy, share)
        else:
            trained.take_blocks(self._plain_blocks(), share)

    def _plain_blocks(self, learned: bool = True) -> Iterator[dict[str, Tensor]]:
        """Return the policy's weights, adapters merged, by the names of a module without adapters, block by block."""
        if self.adapted is None:
            return self.policy.gathered(self.dtype)
        return map(partial(self.adapted.merged, learned=learned), self.policy.gathered())

    def _blocks(self) -> Iterator[dict[str, Tensor]]:
        """Return the policy's weights by their names in a saved folder, block by block."""
        return map(partial(as_saved, self._empty), self._plain_blocks())


def compiling_of(config: TrainConfig, device: torch.device) -> Compiling | None:
    """Return the setting for compiling blocks on that device, by `train.compile`; None: they are not compiled."""
    if config.compile == "on":
        return Compiling("on", config.deterministic)
    is_tried = config.compile == "auto" and device.type == "cuda"
    return Compiling("auto", config.deterministic) if is_tried else None
