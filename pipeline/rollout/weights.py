"""The policy's weights for an engine: in pieces, with the names that they have in a saved folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from verizero.pipeline.models.saved_names import as_saved

Named = Iterable[tuple[str, Tensor]]
Weights = Callable[[], Named]
"""Yields all weights once, as whole tensors. If they are gathered from shards, all ranks must call it together."""


@dataclass(frozen=True, slots=True)
class Published:
    """The last transfer of weights to the engine."""

    way: str
    seconds: float
    num_bytes: int


def weights_of(model: Any) -> Weights:
    """Return the weights of a transformers model, named and shaped as `save_pretrained` would write them.

    A tied tensor comes once. Tensors may be the model's own: copy them before the next update.
    """

    def named() -> Named:
        return as_saved(model, {name: p.detach() for name, p in model.named_parameters()}).items()

    return named


class CountedWeights:
    """Yields the weights of another iterable, and counts tensors and bytes."""

    def __init__(self, weights: Named) -> None:
        self._weights = weights
        self.num_tensors = 0
        self.num_bytes = 0

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._weights:
            self.num_tensors += 1
            self.num_bytes += tensor.numel() * tensor.element_size()
            yield name, tensor


def buckets(weights: Named, max_bytes: int) -> Iterator[list[tuple[str, Tensor]]]:
    """Yield the weights in lists of at most `max_bytes`; a larger tensor comes alone."""
    bucket: list[tuple[str, Tensor]] = []
    num_bytes = 0
    for name, tensor in weights:
        size = tensor.numel() * tensor.element_size()
        if bucket and num_bytes + size > max_bytes:
            yield bucket
            # A new list, not a cleared one: the receiver may still use the old one.
            bucket, num_bytes = [], 0
        bucket.append((name, tensor))
        num_bytes += size
    if bucket:
        yield bucket


def of_folder(folder: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of all safetensors files of a folder."""
    from safetensors import safe_open

    for path in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                yield name, file.get_tensor(name)
