"""One rank of two that train with the kernel of log-probs, interpreted on the CPU; prints how far from torch it ends.

Run by `test_kernels.py` as `python -m tests.train.kernel_rank`; the place is in RANK and WORLD_SIZE.
"""

from __future__ import annotations

import json
import os
from typing import Any

import torch

from tests.train.batches import two_layers
from tests.train.zero_rank import begun, distance, divided, steps, weights
from verizero.pipeline.models.kernels import log_probs
from verizero.pipeline.train.ranks import join, leave
from verizero.pipeline.train.torch_backend import TorchBackend

NUM_STEPS = 2
SHARDED: dict[str, dict[str, Any]] = {"fsdp": {"backend": "fsdp"}, "zero3": {"zero": 3}}


class Calls:
    """Counts the calls of the kernel, and those whose output embeddings are a plain tensor."""

    def __init__(self) -> None:
        self.all = self.plain = 0
        self.compute = log_probs.log_probs

    def __call__(self, hidden: Any, weight: Any, *rest: Any, **named: Any) -> Any:
        self.all += 1
        self.plain += type(weight.data) is torch.Tensor and weight.dim() == 2 and weight.shape[1] == hidden.shape[1]
        return self.compute(hidden, weight, *rest, **named)


def main() -> dict[str, Any]:
    """Return, by backend, the distances of weights and metrics from torch's with the twin, and the calls."""
    torch.set_num_threads(1)
    ranks = join(120)
    os.environ["VERIZERO_KERNELS"] = "off"
    alone = begun(TorchBackend(two_layers()))
    wanted = steps(alone, 0, NUM_STEPS)
    os.environ["VERIZERO_KERNELS"] = "on"
    found = {}
    for name, config in SHARDED.items():
        log_probs.log_probs = calls = Calls()  # type: ignore[assignment]
        backend = begun(divided({"logits_chunk_tokens": 3, **config}, two_layers(), ranks))
        metrics = steps(backend, 0, NUM_STEPS)
        found[name] = {
            "weights": distance(weights(backend), weights(alone)),
            "metrics": max(abs(a[k] - b[k]) for a, b in zip(metrics, wanted, strict=True) for k in b),
            "calls": calls.all,
            "plain": calls.plain,
        }
        log_probs.log_probs = calls.compute
    leave()
    return found


if __name__ == "__main__":
    print("found", json.dumps(main()))
