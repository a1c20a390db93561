"""Steps as CUDA graphs: the host launches a whole step at once. Small models wait for single launches most of the time.

On the CPU a step is simply called.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Work = Callable[[], None]
Record = Callable[[Work], Work]
"""Takes work without doing it; returns what does the same again, with the same tensors at the same addresses."""


def captured(work: Work) -> Work:
    """Capture work on the current CUDA device."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def record_of(device: torch.device) -> Record | None:
    """Return how steps are recorded on a device; None: they are not."""
    return captured if device.type == "cuda" else None


class Graphs:
    """Work by key, each of one shape. The first time it is done as it is, which compiles what it needs."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._warm: set[int] = set()
        self._replays: dict[int, Work] = {}

    def run(self, key: int, work: Work) -> None:
        """Do the work of that key: the second time it is recorded, and from then on replayed."""
        if key not in self._warm:
            self._warm.add(key)
            work()
            return
        if key not in self._replays:
            self._replays[key] = self._record(work)
        self._replays[key]()
