"""Random batches as ragged rows, and the same as padded tensors with gaps between tokens and garbage elsewhere."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.rl.loss import LossInputs
from tests.oracles.rl import Row

GARBAGE = (math.nan, math.inf, -math.inf, 1e30, -7.0)


def random_rows(
    seed: int, num: int = 6, longest: int = 7, drift: float = 0.3, per_token: bool = False, on_policy: bool = False
) -> list[Row]:
    """Rows of 1 to `longest` tokens, with generic values (no ties, no value at a kink)."""
    r = random.Random(seed)
    rows = []
    for _ in range(num):
        size = r.randint(1, longest)
        lp = [-r.expovariate(1.0) - 0.01 for _ in range(size)]
        shared = r.gauss(0, 1)
        rows.append(
            Row(
                lp=lp,
                old=list(lp) if on_policy else [x + r.gauss(0, drift) for x in lp],
                ref=[x + r.gauss(0, drift) for x in lp],
                gen=[x + r.gauss(0, drift) for x in lp],
                adv=[r.gauss(0, 1) if per_token else shared for _ in lp],
                entropy=[r.uniform(0, 2) for _ in lp],
                truncated=r.random() < 0.3,
                high_entropy=[r.random() < 0.5 for _ in lp],
                selected=[r.random() < 0.4 for _ in lp],
            )
        )
    return rows


@dataclass
class Padded:
    """Tensors of some rows, and where row i's token t lies."""

    inputs: LossInputs
    where: list[list[int]]

    def gradient(self) -> list[list[float]]:
        """The gradient at each row's tokens; it must be exactly 0 everywhere else."""
        grad = self.inputs.logprobs.grad
        assert grad is not None
        inside = self.inputs.response_mask > 0
        assert bool((grad[~inside] == 0).all())
        return [[float(grad[i, t]) for t in places] for i, places in enumerate(self.where)]


def pad(rows: Sequence[Row], seed: int = 0, extra: int = 4, dtype: torch.dtype = torch.float64) -> Padded:
    """The rows in [B, T] tensors at random places, garbage elsewhere."""
    r = random.Random(seed)
    width = max(len(row.lp) for row in rows) + extra
    where = [sorted(r.sample(range(width), len(row.lp))) for row in rows]

    def tensor(name: str) -> Tensor:
        out = torch.tensor([[r.choice(GARBAGE) for _ in range(width)] for _ in rows], dtype=dtype)
        for i, row in enumerate(rows):
            for t, value in zip(where[i], getattr(row, name), strict=True):
                out[i, t] = value
        return out

    def flags(name: str) -> Tensor:
        out = torch.tensor([[r.random() < 0.5 for _ in range(width)] for _ in rows])
        for i, row in enumerate(rows):
            for t, value in zip(where[i], getattr(row, name), strict=True):
                out[i, t] = value
        return out

    mask = torch.zeros(len(rows), width, dtype=torch.float32)
    for i, places in enumerate(where):
        mask[i, places] = 1.0
    inputs = LossInputs(
        logprobs=tensor("lp").requires_grad_(),
        advantages=tensor("adv"),
        response_mask=mask,
        old_logprobs=tensor("old"),
        ref_logprobs=tensor("ref"),
        rollout_logprobs=tensor("gen"),
        entropy=tensor("entropy"),
        truncated=torch.tensor([row.truncated for row in rows]),
        high_entropy=flags("high_entropy"),
        selected=flags("selected"),
    )
    return Padded(inputs, where)
