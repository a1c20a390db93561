"""Low-rank adapters (LoRA, by `peft`) on a frozen policy, whose base may be in 4 bits.

With the adapters off the policy is its own base. Readers of a saved folder see a plain model: its weights are both,
merged, and of a base in 4 bits the numbers that these stand for. Sources: arXiv:2106.09685, arXiv:2305.14314.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.errors import CheckpointError, ConfigError, boundary
from verizero.pipeline.models.adapted_layers import (
    NAME,
    chosen,
    name_of,
    plain_name,
    total,
    without_config,
)
from verizero.pipeline.models.load import absent, frozen_copy
from verizero.pipeline.models.quantized import InBits, dense, sharing
from verizero.pipeline.models.saved_names import as_saved, filled, fingerprint, hashed, pieces, without_memory

FOLDER = "adapter"
WEIGHTS = "adapter_model.safetensors"
FACTORS = (".lora_A.", ".lora_B.")
"""In the names of adapters: what follows the name of their module."""
GatherParameters = Callable[..., AbstractContextManager[tuple[Tensor, ...]]]
"""Returns a context with the whole parameters, gathered if ranks divide them."""


def is_factor(name: str) -> bool:
    """True if the weight of this name is an adapter's."""
    return any(factor in name for factor in FACTORS)


def has_factors(names: Iterable[str]) -> bool:
    """True if there are adapters among the weights of these names."""
    return any(map(is_factor, names))


def as_they_are(*parameters: Tensor) -> AbstractContextManager[tuple[Tensor, ...]]:
    """Return a context with the parameters themselves, which are whole already."""
    return nullcontext(parameters)


@dataclass(frozen=True, slots=True)
class EngineAdapters:
    """A policy's adapters for an engine that has their base: each function yields names and whole tensors."""

    config: Any
    """The configuration of `peft`."""
    base: Callable[[], Iterable[tuple[str, Tensor]]]
    """The base's weights, as a saved folder names them."""
    factors: Callable[[], Iterable[tuple[str, Tensor]]]
    """The adapters, as `peft` names them in a saved folder."""


class Adapted:
    """A policy whose adapters alone take a gradient."""

    def __init__(
        self, model: Any, rank: int, alpha: float, targets: Sequence[str], seed: int, quantize_on: str | None = None
    ) -> None:
        """Put adapters into `model` itself; they start at zero, so that it computes what it did.

        `model` may be on `meta`; its adapters have values all the same. A base that is to be in bits must then be
        `read` before it computes. `targets`: names of linear layers and of experts' parameters; none means all but the
        output layer and routers. `quantize_on`: a device, on which the base is put in 4 bits; None leaves it as it is.
        Raises: ConfigError where peft is not installed or the model has no such weights.
        """
        try:
            with _without_bitsandbytes():
                import peft
        except ImportError as exc:
            raise ConfigError(
                f"train.lora is given and peft does not import ({exc}); pip install '.[lora]', or drop it"
            ) from exc
        self.model = model
        is_empty = any(p.device.type == "meta" for p in model.parameters())
        self.base = "" if is_empty or quantize_on is not None else fingerprint(model)
        """The fingerprint of the base. For a model on `meta` its owner sets it, of one in bits `read` does."""
        self.twin: Any = without_memory(model).eval().requires_grad_(False)
        """A module on `meta` with the names and shapes of a plain policy."""
        self._unread = None if quantize_on is None else InBits(model, quantize_on)
        self.is_quantized = quantize_on is not None
        model.requires_grad_(False)
        remedy = "give names of linear layers of the policy, or of its experts' parameters"
        with boundary(ConfigError, f"train.lora.targets={list(targets)} ({remedy})"):
            linear, experts = chosen(model, targets)
            self.config: Any = peft.LoraConfig(
                r=rank, lora_alpha=alpha, target_modules=linear, target_parameters=experts or None, bias="none"
            )
            with torch.random.fork_rng(devices=[]), _stood_in(model), _without_bitsandbytes():
                torch.manual_seed(seed)
                peft.inject_adapter_in_model(self.config, without_config(model))
        self.layers: dict[str, Any] = {n: m for n, m in model.named_modules() if hasattr(m, "lora_A") and m.lora_A}
        """Modules with adapters. One with several parameters that have adapters is there several times, nested."""
        self._of_weights = {name_of(name, layer): name for name, layer in self.layers.items()}
        for layer in self.layers.values():
            is_half = any(p.dtype in (torch.bfloat16, torch.float16) for p in layer.lora_A.parameters())
            for factors in (layer.lora_A, layer.lora_B):
                factors.to(device=quantize_on, dtype=torch.float32 if is_half else None)
        if not is_empty:
            self.read()

    def read(self, part: Any = None) -> None:
        """Read what was not read yet of a base that is to be in bits: that of `part` of the policy, or of all of it."""
        if self._unread is None:
            return
        self._unread.read(self.model if part is None else part)
        if not self._unread.unread:
            sums = self._unread.sums
            self.base = hashed((name, p.shape, sums[name]) for name, p in self.twin.named_parameters())
            self._unread = None

    def is_fresh(self, whole: GatherParameters = as_they_are) -> bool:
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
    def merged(self, block: dict[str, Tensor], learned: bool = True) -> dict[str, Tensor]:
        """Return some of the policy's weights as a plain model has them; without `learned`, as the base has them.

        `block` has whole tensors by the policy's own names, and loses them one by one, so that both are not in memory
        together. A layer's adapters must come with its weight.
        """
        plain: dict[str, Tensor] = {}
        for name in [n for n in block if not is_factor(n)]:
            own = block.pop(name)
            weight = dense(own).contiguous()  # as files have them
            layer = self._of_weights.get(name)
            if learned and layer is not None:
                a, b = (block[f"{layer}{factor}{NAME}.weight"] for factor in FACTORS)
                weight = total(self.layers[layer], weight, a, b)
            plain[plain_name(name)] = weight
        return plain

    def plain_blocks(self, model: Any = None, learned: bool = True) -> Iterator[dict[str, Tensor]]:
        """Yield the weights of a plain model by blocks, as `merged`. model: the whole policy (None) or a snapshot."""
        own = dict((self.model if model is None else model).named_parameters())
        for names in pieces(own):
            yield self.merged({name: own[name] for name in names}, learned)

    def plain_model(self, model: Any = None, learned: bool = True, device: torch.device | None = None) -> Any:
        """Return a frozen plain model with the weights of `plain_blocks`, by default on the policy's device."""
        weights = (named for block in self.plain_blocks(model, learned) for named in block.items())
        return filled(self.twin, weights, device or self.model.device)

    def snapshot(self) -> Any:
        """Return a frozen copy of the policy with its adapters, which holds the policy's own base."""
        return frozen_copy(self.model, sharing([p for p in self.model.parameters() if not p.requires_grad]))

    def trainable_copy(self) -> Any:
        """Return a snapshot whose adapters take a gradient, as an engine tells them from the base."""
        copied = self.snapshot()
        for name, p in copied.named_parameters():
            p.requires_grad_(is_factor(name))
        return copied

    def for_engine(
        self, blocks: Callable[[], Iterable[dict[str, Tensor]]], whole: GatherParameters = as_they_are
    ) -> EngineAdapters | None:
        """Return the adapters for vLLM; None if some are on experts or the output layer, which it does not compute.

        `blocks` yields the base's weights by the names of a plain module.
        """
        head = self.model.get_output_embeddings()
        if any(hasattr(layer, "parameter_name") or layer is head for layer in self.layers.values()):
            return None

        def base() -> Iterator[tuple[str, Tensor]]:
            return (named for block in blocks() for named in as_saved(self.twin, block).items())

        return EngineAdapters(self.config, base, partial(self.factors, whole))

    def factors(self, whole: GatherParameters = as_they_are) -> Iterator[tuple[str, Tensor]]:
        """Yield the adapters by the names of a folder that peft saves. All ranks must iterate in step."""
        for name, p in trained_by_saved_name(self.model).items():
            with whole(p) as (full,):
                yield name, full.detach()

    def save(self, folder: Path, is_first: bool, whole: GatherParameters = as_they_are) -> None:
        """Write the adapters, as peft does, and their base's fingerprint into `folder/adapter`. All ranks call it."""
        tensors: dict[str, Tensor] = {}
        for name, full in self.factors(whole):
            if is_first:
                tensors[name] = full.cpu().contiguous().clone()
        if is_first:
            self.write(folder, self.config, tensors)

    def write(self, folder: Path, config: Any, tensors: dict[str, Tensor]) -> None:
        """Write adapters of this base into `folder/adapter`, with the configuration that peft reads them by."""
        from safetensors.torch import save_file

        place = folder / FOLDER
        place.mkdir(parents=True)
        config.save_pretrained(place)
        save_file(tensors, place / WEIGHTS)
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
    def load(self, folder: Path, model: Any = None) -> None:
        """Restore what `save` or `write` wrote into the policy, or into `model`, which has the same base.

        Raises: CheckpointError if the base is another one, or adapters do not fit.
        """
        from safetensors.torch import load_file

        self.check_base(folder)
        with boundary(CheckpointError, f"the adapters of {folder} do not fit the policy"):
            tensors = load_file(folder / FOLDER / WEIGHTS)
            for name, p in trained_by_saved_name(self.model if model is None else model).items():
                p.copy_(tensors[name])


def trained_by_saved_name(model: Any) -> dict[str, Tensor]:
    """Return the weights of the model that take a gradient, by the names under which peft saves them."""
    trained = ((name, p) for name, p in model.named_parameters() if p.requires_grad)
    return {f"base_model.model.{name.replace(f'.{NAME}.', '.')}": p for name, p in trained}


@contextmanager
def _without_bitsandbytes() -> Iterator[None]:
    """Have peft do without bitsandbytes within the block: its import takes 50 MiB, and layers here have their own."""
    with absent("bitsandbytes"):
        from peft import import_utils

        asked = (import_utils.is_bnb_available, import_utils.is_bnb_4bit_available)
        for answer in asked:
            answer.cache_clear()
        try:
            yield
        finally:
            for answer in asked:  # a program's own models may have layers of it
                answer.cache_clear()


@contextmanager
def _stood_in(model: Any) -> Iterator[None]:
    """Give parameters on `meta` tensors of one number in their place within the block.

    `peft` puts adapters where a layer's weight is, and on `meta` they would have no values.
    """
    empty = {id(p): p for p in model.parameters() if p.device.type == "meta"}
    stand_ins = {
        i: torch.nn.Parameter(torch.zeros((), dtype=p.dtype).expand(p.shape), requires_grad=False)
        for i, p in empty.items()
    }
    back = {id(stand_ins[i]): p.requires_grad_(False) for i, p in empty.items()}
    _replace(model, stand_ins)
    try:
        yield
    finally:
        _replace(model, back)


def _replace(model: Any, others: Mapping[int, torch.nn.Parameter]) -> None:
    """Replace parameters, given by their ids."""
    for module in model.modules():
        for key, p in module._parameters.items():
            module._parameters[key] = others.get(id(p), p)
