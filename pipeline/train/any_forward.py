"""A module whose forward runs any function of the model, because FSDP and DeepSpeed only hook forwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class AnyForward(torch.nn.Module):
    """The root module that FSDP and DeepSpeed wrap; within its forward the weights outside blocks are whole."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[Any], Any]) -> Any:
        """Return compute(model)."""
        return compute(self.model)
