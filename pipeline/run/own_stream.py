"""A CUDA stream for a thread that computes next to the trainer.

A new thread begins with the first GPU and the default stream, whatever its rank uses: it would compute on another GPU
than its weights are on, and take turns with the update instead of running at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch


class OwnStream(Protocol):
    """The place where a thread computes."""

    def bound(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return the work for another thread: after all that this thread has started, and finished when it returns."""
        ...


class Here:
    """The CPU, where work is done when a function returns, on whatever thread."""

    def bound(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return the work itself."""
        return work


HERE = Here()


class CudaStream:
    """A stream on one GPU."""

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        """`cuda`: the module of the calls."""
        self.cuda = cuda
        self.device = torch.device("cuda", cuda.current_device()) if device.index is None else device
        self.stream = cuda.Stream(self.device)

    def bound(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return the work on the stream; its tensors may be used on any stream once it has returned."""
        # Weights that this thread is still copying must be there before the other thread reads them.
        started = self.cuda.current_stream(self.device).record_event()

        def run() -> None:
            self.cuda.set_device(self.device)
            self.stream.wait_event(started)
            with self.cuda.stream(self.stream):
                try:
                    work()
                finally:
                    self.stream.synchronize()

        return run


def own_stream(device: torch.device) -> OwnStream:
    """Return a stream on the device of the policy; the CPU has none."""
    return CudaStream(device) if device.type == "cuda" else HERE
