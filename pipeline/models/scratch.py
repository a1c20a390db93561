"""One tensor of each thread for numbers that no longer than one product need."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

_of_thread = threading.local()


def scratch(count: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a tensor [count] without values; on the CPU it is overwritten by this thread's next one of that type.

    Products with a quantised weight make its numbers each time. In memory that is new each time these would cause page
    faults, and holes in the heap in which no other tensor fits.
    """
    if device.type != "cpu":  # torch has a pool of memory there, and an earlier product may not have begun
        return torch.empty(count, dtype=dtype, device=device)
    kept: dict[torch.dtype, Tensor] = vars(_of_thread).setdefault("kept", {})
    if dtype not in kept or kept[dtype].numel() < count:
        kept.pop(dtype, None)
        with torch.inference_mode(False):  # a tensor of inference mode can be written to there alone
            kept[dtype] = torch.empty(count, dtype=dtype)
    return kept[dtype][:count]
