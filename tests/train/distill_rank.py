"""One rank of two that distil with torch, FSDP and DeepSpeed; prints the distance from one process.

Run by `test_distillation.py` as `python -m tests.train.distill_rank`; the place is in RANK and WORLD_SIZE.
"""

from __future__ import annotations

import json
from typing import Any

import torch

from tests.train.batches import two_layers
from tests.train.test_distillation import rows_of, settings
from tests.train.zero_rank import begun, distance, divided, joined, once, weights
from verizero.pipeline.rl.divergences import Objective
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.distillation import distill_update
from verizero.pipeline.train.ranks import ALONE, leave
from verizero.pipeline.train.teachers import ModelTeacher, ReferenceTeacher
from verizero.pipeline.train.torch_backend import TorchBackend

OBJECTIVES = [Objective("jsd", beta=0.3), Objective("reverse_kl", "top_k", top_k=4, discount=0.5)]
CONFIGS: dict[str, dict[str, Any]] = {f"zero {n}": {"zero": n} for n in (0, 2, 3)}
CONFIGS["fsdp"] = {"backend": "fsdp"}
CONFIGS["zero 3, offloaded"] = {"zero": 3, "offload": "all"}


def taught(backend: Backend, whole: bool = False) -> dict[str, torch.Tensor]:
    """The weights after some updates by a teacher that is held and by the policy's own reference."""
    teachers = {"a": ModelTeacher(two_layers(50)), "b": ReferenceTeacher(backend, whole)}
    for step in range(3):
        metrics = distill_update(backend, teachers, rows_of(7, step), OBJECTIVES[step % 2], settings(60))
        assert metrics["tree/ratio"] > 1.1
    return weights(backend)


def main() -> None:
    """Print the largest difference of a weight, for each way of training."""
    ranks = joined()
    wanted = once(ranks, lambda: taught(begun(TorchBackend(two_layers(), ALONE))))
    found = {"torch": distance(taught(begun(TorchBackend(two_layers(), ranks))), wanted)}
    for name, config in CONFIGS.items():
        backend = begun(divided(config, two_layers(), ranks))
        found[name] = distance(taught(backend, "offload" in config or name == "fsdp"), wanted)
    leave()
    print("found " + json.dumps(found))


if __name__ == "__main__":
    main()
