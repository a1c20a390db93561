"""One optimiser step by two ranks in threads, each with its own policy and its share of the rows."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import torch
from torch import Tensor

from tests.train.batches import backend_of
from verizero.pipeline.rl.parts import Parts
from verizero.pipeline.train.collate import rank_micro_batches
from verizero.pipeline.train.micros import micros_at, row_costs
from verizero.pipeline.train.prepare import Settings, prepare
from verizero.pipeline.train.step import _policy_gradient
from verizero.pipeline.train.torch_backend import TorchBackend
from verizero.pipeline.types import Group

Solved = tuple[dict[str, float], Tensor]


def gradient_of(backend: TorchBackend) -> Tensor:
    """The policy's gradient in one vector."""
    return torch.cat([p.grad.flatten() for p in backend.model.parameters() if p.grad is not None])


def two_ranks(parts: Parts, groups: list[Group], settings: Settings) -> tuple[Solved, Solved]:
    """Metrics and gradient of each rank; rows of one episode lie on both."""
    barrier, slots = threading.Barrier(2, timeout=60), [torch.zeros(0), torch.zeros(0)]

    def rank(at: int) -> Solved:
        def all_reduce(x: Tensor) -> Tensor:
            slots[at] = x
            barrier.wait()
            total = slots[0] + slots[1]
            barrier.wait()
            return total

        backend = backend_of()
        prepared = prepare(backend, parts, groups, settings)
        sizes = row_costs(prepared.batch)
        pieces, _ = rank_micro_batches(sizes, settings.micro_batch_tokens, at, 2)
        backend.ranks = SimpleNamespace(row_ranks=SimpleNamespace(all_reduce=all_reduce), pieces=None)  # type: ignore[assignment]
        micros = micros_at(prepared.batch, pieces, sizes, settings.micro_batch_tokens)
        metrics = _policy_gradient(backend, parts, prepared, micros, settings, 0)
        return {**prepared.advantages.stats, **metrics}, gradient_of(backend)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(rank, (0, 1))
    return first, second
