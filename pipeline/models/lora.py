"""Low-rank adapters (LoRA, by `peft`) on a frozen policy, and the plain model whose weights are both, merged.

The merged twin generates and is saved: engines and readers of a saved folder see no adapters. It shares with the policy
all weights that no adapter changes. With the adapters off the policy is its own base. Source: arXiv:2106.09685.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.errors import CheckpointError, ConfigError, boundary
from pipeline.models.load import frozen_copy

FOLDER = "adapter"
NAME = "default"
Whole = Callable[..., AbstractContextManager[tuple[Tensor, ...]]]
"""Returns a context with the parameters put together, if ranks share them out."""


def as_they_are(*parameters: Tensor) -> AbstractContextManager[tuple[Tensor, ...]]:
    """Return a context with the parameters themselves, which are whole already."""
    return nullcontext(parameters)


class Adapted:
    """A policy whose adapters alone take a gradient, and its merged twin."""

    def __init__(
        self, model: Any, rank: int, alpha: float, targets: Sequence[str], seed: int, shares: bool = True
    ) -> None:
        """Put adapters into `model` itself; they start at zero, so that it computes what it did.

        `targets`: names of linear layers; none means all but the output layer. `shares`: the twin shares unchanged
        weights.
        Raises: ConfigError where peft is not installed or the model has no such layers.
        """
        try:
            import peft
        except ImportError as exc:
            raise ConfigError(
                f"train.lora is given and peft does not import ({exc}); pip install 'verizero[lora]', or drop it"
            ) from exc
        self.model = model
        self.base = fingerprint(model)
        own = {id(p): p for p in model.parameters()}
        self.twin: Any = copy.deepcopy(model, dict(own) if shares else {}).eval().requires_grad_(False)
        self.config: Any = peft.LoraConfig(
            r=rank, lora_alpha=alpha, target_modules=list(targets) or "all-linear", lora_dropout=0.0, bias="none"
        )
        with boundary(ConfigError, f"train.lora.targets={list(targets)} (give names of linear layers of the policy)"):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                peft.inject_adapter_in_model(self.config, model)
        self.layers: dict[str, Any] = {n: m for n, m in model.named_modules() if hasattr(m, "lora_A") and m.lora_A}
        for name, layer in self.layers.items():
            if any(p.dtype in (torch.bfloat16, torch.float16) for p in layer.lora_A.parameters()):
                layer.lora_A.float()
                layer.lora_B.float()
            if shares:
                seat = self.twin.get_submodule(name)
                seat.weight = torch.nn.Parameter(seat.weight.detach().clone(), requires_grad=False)

    def is_fresh(self, whole: Whole = as_they_are) -> bool:
        """True if the adapters change nothing, because they have learned nothing yet."""
        changes = False
        for layer in self.layers.values():  # without an early exit: every rank must enter each context
            with whole(layer.lora_B[NAME].weight) as (b,):
                changes |= bool(b.any())
        return not changes

    @contextmanager
    def without(self) -> Iterator[None]:
        """Switch the adapters off within the block: the policy is its base."""
        for layer in self.layers.values():
            layer._disable_adapters = True
        try:
            yield
        finally:
            for layer in self.layers.values():
                layer._disable_adapters = False

    @torch.no_grad()
    def merge(self, whole: Whole = as_they_are) -> Any:
        """Bring the twin to the policy's present weights, and return it."""
        for name, layer in self.layers.items():
            divided = (layer.base_layer.weight, layer.lora_A[NAME].weight, layer.lora_B[NAME].weight)
            with whole(*divided) as (base, a, b):
                change = layer.scaling[NAME] * (_wide(b) @ _wide(a))
                change = change.t() if layer.fan_in_fan_out else change
                self.twin.get_submodule(name).weight.copy_(_wide(base) + change)
        return self.twin

    @torch.no_grad()
    def base_copy(self, whole: Whole = as_they_are) -> Any:
        """Return a plain frozen model with the base's weights."""
        base = frozen_copy(self.twin)
        for name, layer in self.layers.items():
            with whole(layer.base_layer.weight) as (weight,):
                base.get_submodule(name).weight.copy_(weight)
        return base

    def save(self, folder: Path, is_first: bool, whole: Whole = as_they_are) -> None:
        """Write the adapters, as peft does, and their base's fingerprint into `folder/adapter`. All ranks call it."""
        from safetensors.torch import save_file

        tensors: dict[str, Tensor] = {}
        for name, p in self._parameters():
            with whole(p) as (full,):
                if is_first:
                    tensors[f"base_model.model.{name}"] = full.detach().cpu().contiguous().clone()
        if is_first:
            place = folder / FOLDER
            place.mkdir()
            self.config.save_pretrained(place)
            save_file(tensors, place / "adapter_model.safetensors")
            (place / "base.json").write_text(json.dumps({"fingerprint": self.base}))

    def check_base(self, folder: Path) -> None:
        """Raise CheckpointError if the adapters in `folder` are of another base."""
        with boundary(CheckpointError, f"the adapters of {folder} do not fit the policy"):
            if json.loads((folder / FOLDER / "base.json").read_text())["fingerprint"] != self.base:
                raise ValueError(
                    "they are of another base than the recipe's model; model.path must hold what it held when the run "
                    "started"
                )

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Restore what `save` wrote. Raises: CheckpointError if the base is another one, or adapters do not fit."""
        from safetensors.torch import load_file

        self.check_base(folder)
        with boundary(CheckpointError, f"the adapters of {folder} do not fit the policy"):
            tensors = load_file(folder / FOLDER / "adapter_model.safetensors")
            for name, p in self._parameters():
                p.copy_(tensors[f"base_model.model.{name}"])

    def _parameters(self) -> list[tuple[str, Tensor]]:
        """Return the adapters with the names under which peft saves them."""
        return [(n.replace(f".{NAME}.", "."), p) for n, p in self.model.named_parameters() if p.requires_grad]


def fingerprint(model: Any) -> str:
    """Return a hash of the names and of the sum of each weight's bits, which differs for another model."""
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    words = [
        f"{name} {tuple(p.shape)} {int(p.detach().contiguous().view(kinds[p.element_size()]).sum(dtype=torch.int64))}"
        for name, p in model.named_parameters()
    ]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
