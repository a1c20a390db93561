"""A module that is whole in every process, with torch's own AdamW; gradients are summed over ranks."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.errors import CheckpointError, NonFiniteError
from verizero.pipeline.host.heap import keep_freed_memory
from verizero.pipeline.models.compiled import Compiling, compile_blocks
from verizero.pipeline.models.load import frozen_copy, recompute_activations
from verizero.pipeline.models.lora import Adapted, has_factors, is_factor
from verizero.pipeline.models.saved_names import filled
from verizero.pipeline.models.scalar_head import score_of
from verizero.pipeline.train.optimizer import Masters, clipped_step, finite_norm, trained_by, with_masters
from verizero.pipeline.train.ranks import Ranks
from verizero.pipeline.train.trained import POLICY, POLICY_PART, REFERENCE, WHOLE, Trained, mix_in


class TorchTrained(Trained):
    """A whole module."""

    backend = "torch"

    def __init__(self, model: Any, whose: str, ranks: Ranks, device: torch.device | None = None) -> None:
        """As `Trained`; the module is put into evaluation mode, because ratios compare the same function."""
        super().__init__(model.eval(), whose, ranks, device)
        self.optimizer: torch.optim.Optimizer | None = None
        self._norm: Tensor | None = None
        """The norm of the gradient after its sum over ranks; None before that sum."""

    def stop(self) -> None:
        """Drop the optimiser, and leave the gradients of parameters alone."""
        super().stop()
        if isinstance(self.optimizer, Masters):
            self.optimizer.release()
        self.optimizer = None

    def require_finite(self) -> None:
        """Sum the gradient over ranks, and raise NonFiniteError if it is not finite; the gradient stays."""
        if self._norm is None:
            self.ranks.sum_gradients([p.grad for p in self._parameters() if p.grad is not None])
            self._norm = finite_norm(self._parameters(), self.whose, self.num_updates)

    def discard(self) -> None:
        super().discard()
        self._norm = None
        for p in self._parameters():  # masters have it in place of parameters in half precision
            p.grad = None

    @torch.no_grad()
    def take_blocks(self, blocks: Iterable[Mapping[str, Tensor]], share: float = 1.0) -> None:
        """Set the weights to share * theirs + (1 - share) * weights; see `Trained.take_blocks`."""
        own = dict(self.model.named_parameters())
        for block in blocks:
            for name in own.keys() & block.keys():
                mix_in(own[name], block[name], share)

    def place(self, is_used: bool) -> None:
        device = self.device if is_used else torch.device("cpu")
        if self.model.device != device:
            self.model.to(device)

    def frozen(self, empty: Any, blocks: Iterable[Mapping[str, Tensor]]) -> Trained:
        """Return a frozen module like `empty`, which may be this one's own, with these weights."""
        if empty is self.model:
            return TorchTrained(frozen_copy(self.model), REFERENCE, self.ranks)
        return whole_reference(empty, blocks, self.ranks, self.device)

    def like(self, model: Any, whose: str) -> Trained:
        return TorchTrained(model, whose, self.ranks)

    def _write(self, folder: Path, parts: Mapping[str, Trained], *others: Any) -> None:
        critic = parts.get("critic")
        if critic is not None and critic.model is not _head_of(critic.model) and self.ranks.is_first:
            critic.model.save_pretrained(folder / "critic")

    def content(self, part: str) -> dict[str, Any]:
        """Return the optimiser, of a reference the weights, of a critic those of its head too."""
        if part == "reference":
            tensors: dict[str, Any] = self.model.state_dict()
            # Of a snapshot the adapters: the base is the policy's.
            return {n: w for n, w in tensors.items() if is_factor(n)} if has_factors(tensors) else tensors
        content = {} if self.optimizer is None else {"optimizer": self.optimizer.state_dict()}
        return content | ({"head": _head_of(self.model).state_dict()} if part == "critic" else {})

    @torch.no_grad()
    def read(self, folder: Path, state: dict[str, Any], part: str = "") -> None:
        """Restore what `content` returned."""
        saved = state["whole"].get(part or POLICY_PART)
        try:
            if part == "reference":
                own = self.model.state_dict()
                if not has_factors(saved):
                    self.model.load_state_dict(saved)
                for name in filter(is_factor, saved):
                    own[name].copy_(saved[name])
                return
            if self.optimizer is None:
                return
            if part:
                _head_of(self.model).load_state_dict(saved["head"])
            # A copy: a file's tensors are at odd addresses.
            self.optimizer.load_state_dict(copy.deepcopy(saved["optimizer"]))
            for parameter, moments in self.optimizer.state.items():
                moment = moments["exp_avg"] if "exp_avg" in moments else moments["state1"]  # of bitsandbytes
                if (shape := moment.shape) != parameter.shape:  # which torch would accept
                    raise ValueError(f"a moment of shape {tuple(shape)} for a parameter of {tuple(parameter.shape)}")
        except (TypeError, ValueError, RuntimeError, KeyError) as exc:
            what = f"the {part} of {folder}" if part else f"{folder / WHOLE}"
            raise CheckpointError(f"{what} does not fit the model: {exc}") from exc
        self.num_updates = (state[part] if part else state)["num_updates"]

    def _restart(self, optimizer: OptimizerConfig) -> None:
        if isinstance(self.optimizer, Masters):
            self.optimizer.release()
        self.optimizer = with_masters(self.model, optimizer)
        self.discard()

    def _update(self, config: OptimizerConfig, rate: float) -> float:
        assert self.optimizer is not None
        try:
            self.require_finite()
        except NonFiniteError:
            self.discard()
            raise
        assert self._norm is not None
        norm = float(self._norm)
        clipped_step(self.optimizer, config, self._parameters(), self._norm, rate)
        self.discard()
        return norm

    def _parameters(self) -> list[Tensor]:
        return [] if self.optimizer is None else trained_by(self.optimizer)


def torch_policy(
    model: Any, config: TrainConfig, ranks: Ranks, adapted: Adapted | None, compiling: Compiling | None
) -> TorchTrained:
    """Return the policy `model`, whole in every process. `adapted`: its adapters, if they alone are trained."""
    if adapted is not None:
        adapted.read()
    if model.device.type == "cpu":
        keep_freed_memory()
    compile_blocks(model, compiling)
    if config.recomputes:
        recompute_activations(model)
    return TorchTrained(model, POLICY, ranks)


def whole_reference(
    empty: Any, blocks: Iterable[Mapping[str, Tensor]], ranks: Ranks, device: torch.device
) -> TorchTrained:
    """Return a frozen module like `empty` with these weights, whole in every process."""
    weights = (named for block in blocks for named in block.items())
    return TorchTrained(filled(empty, weights, device).requires_grad_(False), REFERENCE, ranks, device)


def _head_of(model: Any) -> Any:
    """Return the head of a classifier, or the model itself, if it is nothing but a head."""
    return model if isinstance(model, torch.nn.Linear) else score_of(model)
