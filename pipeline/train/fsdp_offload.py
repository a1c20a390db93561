"""A divided module whose weights are in the CPU's memory while nothing computes with it: a reference with `offload`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from verizero.pipeline.train.fsdp_shards import FsdpShards


class OffloadedShards(FsdpShards):
    """An `FsdpShards` without an optimiser, whose device memory is free outside `present`."""

    def __init__(self, *arguments: Any) -> None:
        """As `FsdpShards`. The weights leave the device after the first block of `present`."""
        super().__init__(*arguments)
        self._held: dict[str, tuple[Tensor, int]] = {}
        """By name, a copy of this rank's rows, and the bytes of their storage on the device, with padding."""

    @contextmanager
    def present(self) -> Iterator[None]:
        """Bring the weights to the device within the block; changes are kept."""
        own = {name: p.to_local().detach() for name, p in self.model.named_parameters()}
        for name, (rows, size) in self._held.items():
            own[name].untyped_storage().resize_(size)
            own[name].copy_(rows)
        try:
            yield
        finally:
            for name, p in own.items():
                self._held[name] = (p.to("cpu", copy=True), p.untyped_storage().nbytes())
                p.untyped_storage().resize_(0)

    def run(self, compute: Callable[[Any], Any]) -> Any:
        """Return compute(model)."""
        with self.present():
            return super().run(compute)

    def take(self, source: Any, share: float = 1.0) -> None:
        """Set the weights; see `FsdpShards.take`."""
        with self.present():
            super().take(source, share)

    def take_blocks(self, blocks: Iterable[Mapping[str, Tensor]], share: float = 1.0) -> None:
        """Set the weights; see `FsdpShards.take_blocks`."""
        with self.present():
            super().take_blocks(blocks, share)
