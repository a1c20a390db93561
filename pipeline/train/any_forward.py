"""The root module that FSDP and DeepSpeed wrap: any computation with a model is its forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class AnyForward(torch.nn.Module):
    """A root whose forward is any computation with the model, inside which the model is plain."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[Any], Any]) -> Any:
        """Return compute(model)."""
        return compute(self.model)
