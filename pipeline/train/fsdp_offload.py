"""A sharded reference that is offloaded to CPU memory between uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from verizero.pipeline.train.fsdp_shards import FsdpShards


class OffloadedShards(FsdpShards):
    """An `FsdpShards` without an optimiser that takes no device memory outside `on_device`."""

    def __init__(self, *arguments: Any) -> None:
        """As `FsdpShards`. The weights leave the device after the first block of `on_device`."""
        super().__init__(*arguments)
        self._cpu_rows: dict[str, tuple[Tensor, int]] = {}
        """By name, this rank's rows on the CPU, and the bytes of their storage on the device, with padding."""

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Have the weights on the device within the block, and copy them back to the CPU at its end."""
        device_rows = {name: p.to_local().detach() for name, p in self.model.named_parameters()}
        for name, (rows, num_bytes) in self._cpu_rows.items():
            device_rows[name].untyped_storage().resize_(num_bytes)
            device_rows[name].copy_(rows)
        try:
            yield
        finally:
            for name, rows in device_rows.items():
                self._cpu_rows[name] = (rows.to("cpu", copy=True), rows.untyped_storage().nbytes())
                rows.untyped_storage().resize_(0)

    def run(self, compute: Callable[[Any], Any]) -> Any:
        """Return compute(model)."""
        with self.on_device():
            return super().run(compute)

    def take(self, source: Any, share: float = 1.0) -> None:
        """Set the weights; see `FsdpShards.take`."""
        with self.on_device():
            super().take(source, share)

    def take_blocks(self, blocks: Iterable[Mapping[str, Tensor]], share: float = 1.0) -> None:
        """Set the weights; see `FsdpShards.take_blocks`."""
        with self.on_device():
            super().take_blocks(blocks, share)
