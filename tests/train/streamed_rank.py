"""One of two ranks whose weights are divided from the start, for an engine that takes them piece by piece.

Run by `test_named_weights.py` as `python -m tests.train.streamed_rank`; prints distances and sizes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import torch

from tests.models.families import build
from tests.train.zero_rank import NUM_STEPS, OPTIMIZER, distance, joined, steps, weights
from verizero.pipeline.config.sections import TrainConfig
from verizero.pipeline.rollout.weights import weights_of
from verizero.pipeline.train.deepspeed_backend import DeepSpeedBackend
from verizero.pipeline.train.ranks import Ranks, leave

WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4}
"""DeepSpeed leaves weights of less than 100,000 elements whole, and these layers have larger ones."""


def trained(ranks: Ranks, early: bool) -> DeepSpeedBackend:
    """A backend after two updates; `early`: its weights were divided before its stage began, and no copy is kept."""
    config = TrainConfig(backend="deepspeed", device="cpu", zero=3)
    backend = DeepSpeedBackend(build("qwen2", WIDE), config, ranks, engine_reads_module=not early)
    if early:
        backend.shard()
    backend.start(OPTIMIZER, NUM_STEPS)
    backend.refresh_reference()
    steps(backend, 0, 2)
    return backend


def whole_at_once(backend: DeepSpeedBackend) -> Iterator[tuple[int, str, torch.Tensor]]:
    """The backend's weights, each with the number of elements that the module holds at that time."""
    for name, tensor in backend.named_weights():
        yield sum(p.numel() for p in backend.model.parameters()), name, tensor.clone()


def main() -> dict[str, Any]:
    ranks = joined()
    late, early = trained(ranks, early=False), trained(ranks, early=True)
    wanted, streamed = weights(late), list(whole_at_once(early))
    first = early.whole_model(only_first=True)
    found = {
        "trained alike": distance(weights(early), wanted),
        "streamed": distance({n: t for _, n, t in streamed}, dict(weights_of(late.whole_model())())),
        "most at once": max(size for size, *_ in streamed),
        "all": sum(p.numel() for p in late.whole_model().parameters()),
        "kept": sum(p.numel() for p in early._whole.parameters()),
        "reference": distance(dict(early.reference.named_parameters()), dict(late.reference.named_parameters())),
        "saved": 0.0 if first is None else distance(dict(first.named_parameters()), wanted),
        "saves": first is not None,
    }
    leave()
    return found


if __name__ == "__main__":
    print("found", json.dumps(main()))
