"""torch's switch by which an operation without a deterministic kernel is an error; it is one for all threads.

A backward pass needs it. An engine that generates in a thread of its own meanwhile has operations that it refuses, such
as the cumulative sum by which a token is drawn. So a step of the engine and a backward pass wait for each other.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_TURN = threading.RLock()


@contextmanager
def strict() -> Iterator[None]:
    """Within the block, an operation without a deterministic kernel is an error, and no other thread is `lenient`."""
    with _TURN:
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(True, warn_only=True)


@contextmanager
def lenient() -> Iterator[None]:
    """Within the block, no other thread is `strict`. Where torch is not told to be deterministic, nothing waits."""
    if not torch.are_deterministic_algorithms_enabled():
        yield
        return
    with _TURN:
        yield
