"""Low-rank adapters (LoRA, by `peft`) on a frozen policy, whose base may be in 4 bits.

With the adapters off the policy is its own base. Readers of a saved folder see a plain model: its weights are both,
merged, and of a base in 4 bits the numbers that these stand for. Under DeepSpeed a merged twin generates, too. Sources:
arXiv:2106.09685, arXiv:2305.14314.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from verizero.pipeline.errors import CheckpointError, ConfigError, boundary
from verizero.pipeline.models.absent import absent
from verizero.pipeline.models.adapted_layers import (
    NAME,
    chosen,
    has_experts,
    key_of,
    name_of,
    plain_name,
    total,
    weight_of,
    without_config,
)
from verizero.pipeline.models.fingerprint import fingerprint, hashed
from verizero.pipeline.models.load import frozen_copy
from verizero.pipeline.models.quantized import InBits, bits_of, dense, sharing
from verizero.pipeline.models.saved_names import as_saved, filled, pieces, without_memory

FOLDER = "adapter"
WEIGHTS = "adapter_model.safetensors"
FACTORS = (".lora_A.", ".lora_B.")
"""In the names of adapters: what follows the name of their module."""
MergedTwin = Literal["shares", "copies", "empty"]
"""The weights of the merged twin: shared with the policy where no adapter changes them, all copied, or none."""
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
    """The base's weights, as a saved folder names them; of those in `kinds` `quantized.bits_of`."""
    factors: Callable[[], Iterable[tuple[str, Tensor]]]
    """The adapters, as `peft` names them in a saved folder."""
    kinds: Mapping[str, str]
    """Layer -> how its weight is kept (`quantized.InBits.kinds`), if the engine takes the base in bits."""


class Adapted:
    """A policy whose adapters alone take a gradient."""

    def __init__(
        self,
        model: Any,
        rank: int,
        alpha: float,
        targets: Sequence[str],
        seed: int,
        twin: MergedTwin = "empty",
        quantize_on: str | None = None,
        file: Path | None = None,
    ) -> None:
        """Put adapters into `model` itself; they start at zero, so that it computes what it did.

        `model` may be on `meta`; its adapters have values all the same. A base that is to be in bits must then be
        `read` before it computes. `targets`: names of linear layers and of experts' parameters; none means all but the
        output layer and routers. An empty twin only has names and shapes for `merged`. `quantize_on`: a device, on
        which the base is put in 4 bits; None leaves it as it is. `file`: the GGUF file whose blocks it keeps instead.
        Raises: ConfigError where peft is not installed or the model has no such weights.
        """
        try:
            with _without_bitsandbytes():
                import peft
        except ImportError as exc:
            raise ConfigError(
                f"train.lora is given and peft does not import ({exc}); pip install 'verizero[lora]', or drop it"
            ) from exc
        self.model = model
        is_empty = any(p.device.type == "meta" for p in model.parameters())
        self.base = "" if is_empty or quantize_on is not None else fingerprint(model)
        """The fingerprint of the base. For a model on `meta` its owner sets it, of one in bits `read` does."""
        shared = {id(p): p for p in model.parameters()} if twin == "shares" else {}
        self.twin: Any = without_memory(model) if twin == "empty" else copy.deepcopy(model, shared)
        self.twin.eval().requires_grad_(False)
        self._unread = None if quantize_on is None else InBits(model, quantize_on, file)
        self.kinds: Mapping[str, str] = {} if self._unread is None else self._unread.kinds
        """Weight that is in bits -> how it is kept, as in `InBits.kinds`."""
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
        for name, layer in self.layers.items():
            is_half = any(p.dtype in (torch.bfloat16, torch.float16) for p in layer.lora_A.parameters())
            for factors in (layer.lora_A, layer.lora_B):
                factors.to(device=quantize_on, dtype=torch.float32 if is_half else None)
            if twin == "shares":
                seat, key = self.twin.get_submodule(plain_name(name)), key_of(layer)
                own_copy = getattr(seat, key).detach().clone()
                setattr(seat, key, torch.nn.Parameter(own_copy, requires_grad=False))
        if not is_empty:
            self.read()

    def read(self, part: Any = None) -> None:
        """Read what was not read yet of a base that is to be in bits: that of `part` of the policy, or of all of it.

        Raises: ConfigError, as `InBits.read`.
        """
        if self._unread is None:
            return
        self._unread.read(self.model if part is None else part)
        if not self._unread.unread:
            sums = self._unread.sums
            self.base = hashed((name, p.shape, sums[name]) for name, p in self.twin.named_parameters())
            self._unread = None

    @property
    def is_quantized(self) -> bool:
        """True if the base is in bits."""
        return bool(self.kinds)

    @property
    def has_unusual_layers(self) -> bool:
        """True if adapters are on experts or on the output layer."""
        head = self.model.get_output_embeddings()
        return any(has_experts(layer) or layer is head for layer in self.layers.values())

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
    def merge(self, whole: GatherParameters = as_they_are) -> Any:
        """Bring the twin to the policy's present weights, and return it."""
        for name, layer in self.layers.items():
            with whole(weight_of(layer), layer.lora_A[NAME].weight, layer.lora_B[NAME].weight) as (base, a, b):
                self._seat(self.twin, name).copy_(total(layer, base, a, b))
        return self.twin

    @torch.no_grad()
    def merged(self, block: dict[str, Tensor], learned: bool = True, in_bits: bool = False) -> dict[str, Tensor]:
        """Return some of the policy's weights as a plain model has them; without `learned`, as the base has them.

        `in_bits`, without `learned`: quantised ones as `bits_of`. `block` has whole tensors by the policy's own
        names, and loses them one by one, so that both are not in memory together. A layer's adapters must come with its
        weight.
        """
        plain: dict[str, Tensor] = {}
        for name in [n for n in block if not is_factor(n)]:
            own = block.pop(name)
            weight = (bits_of(own) if in_bits else dense(own)).contiguous()  # as files have them
            layer = self._of_weights.get(name)
            if learned and layer is not None:
                a, b = (block[f"{layer}{factor}{NAME}.weight"] for factor in FACTORS)
                weight = total(self.layers[layer], weight, a, b)
            plain[plain_name(name)] = weight
        return plain

    def plain_blocks(
        self, model: Any = None, learned: bool = True, in_bits: bool = False
    ) -> Iterator[dict[str, Tensor]]:
        """Yield the weights as a plain model has them, block by block; see `merged`.

        model: the policy, whole in this process, or a snapshot of it; None for the policy.
        """
        own = dict((self.model if model is None else model).named_parameters())
        for names in pieces(own):
            yield self.merged({name: own[name] for name in names}, learned, in_bits)

    def plain_model(self, model: Any = None, learned: bool = True) -> Any:
        """Return a frozen plain model with the weights of `plain_blocks`; the twin must be an empty one."""
        weights = ((name, w) for block in self.plain_blocks(model, learned) for name, w in block.items())
        return filled(self.twin, weights, self.model.device)

    def snapshot(self) -> Any:
        """Return a frozen copy of the policy with its adapters, which holds the policy's own base."""
        return frozen_copy(self.model, sharing([p for p in self.model.parameters() if not p.requires_grad]))

    def trainable_copy(self) -> Any:
        """Return a snapshot whose adapters take a gradient, as an engine tells them from the base."""
        copied = self.snapshot()
        for name, p in copied.named_parameters():
            p.requires_grad_(is_factor(name))
        return copied

    @torch.no_grad()
    def base_copy(self, whole: GatherParameters = as_they_are) -> Any:
        """Return a plain frozen model with the base's weights."""
        base = frozen_copy(self.twin)
        for name, layer in self.layers.items():
            with whole(weight_of(layer)) as (weight,):
                self._seat(base, name).copy_(weight)
        return base

    def for_engine(
        self,
        blocks: Callable[[bool], Iterable[dict[str, Tensor]]],
        in_bits: bool,
        whole: GatherParameters = as_they_are,
    ) -> EngineAdapters | None:
        """Return the adapters for vLLM; None if some are on experts or the output layer, which it does not compute.

        `blocks(in_bits)` yields the base's weights by the names of a plain module. `in_bits`: the engine can take them
        as `bits_of`; it gets them so where a saved folder has each of them by itself and by its own name.
        """
        if self.has_unusual_layers:
            return None
        of_twin, kinds = dict(self.twin.named_parameters()), self.kinds if in_bits else {}
        files = as_saved(self.twin, {name: of_twin[name].to("meta") for name in kinds})
        if any(name not in files or files[name].shape != of_twin[name].shape for name in kinds):
            kinds = {}

        def base() -> Iterator[tuple[str, Tensor]]:
            return (named for block in blocks(bool(kinds)) for named in as_saved(self.twin, block).items())

        of_layers = {name.removesuffix(".weight"): kind for name, kind in kinds.items()}
        return EngineAdapters(self.config, base, partial(self.factors, whole), of_layers)

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

    def _seat(self, plain: Any, name: str) -> Tensor:
        """Return the weight of a plain model in the place of that of a module with adapters."""
        weight: Tensor = plain.get_parameter(f"{plain_name(name)}.{key_of(self.layers[name])}")
        return weight


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


def usual_targets(model_type: str) -> list[str]:
    """Return the ends of names of the layers that peft adapts in this architecture by itself; empty: it knows none."""
    with _without_bitsandbytes():
        from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as USUAL

    return list(USUAL.get(model_type, ()))


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
