"""Random batches as ragged rows, and the same as padded tensors with gaps between tokens and garbage elsewhere."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from tests.oracles.rl import Row
from verizero.pipeline.rl.loss import Counts, LossInputs, count_denominators, policy_loss, summarize
from verizero.pipeline.rl.parts import Parts

GARBAGE = (math.nan, math.inf, -math.inf, 1e30, -7.0)


def random_rows(
    seed: int,
    num: int = 6,
    longest: int = 7,
    drift: float = 0.3,
    per_token: bool = False,
    on_policy: bool = False,
    stale: bool = False,
) -> list[Row]:
    """Rows of 1 to `longest` tokens, with generic values (no ties, no value at a kink); with `stale` some are old."""
    r, chosen = random.Random(seed), random.Random(f"chosen {seed}")
    rows: list[Row] = []
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
                stale=stale and chosen.random() < 0.5,
            )
        )
    return rows


@dataclass
class Padded:
    """Tensors of some rows, and the column of each token of each row."""

    inputs: LossInputs
    where: list[list[int]]

    def by_row(self, gradient: Tensor) -> list[list[float]]:
        """Return the gradient at each row's tokens; it must be exactly 0 everywhere else."""
        assert bool((gradient[self.inputs.response_mask == 0] == 0).all())
        return [[float(gradient[i, t]) for t in places] for i, places in enumerate(self.where)]


def count_of(parts: Parts, *inputs: LossInputs) -> Counts:
    """Return the counts of these micro-batches together."""
    counts = [count_denominators(parts, x.response_mask, x.truncated, x.shares) for x in inputs]
    return Counts(*torch.stack(counts).sum(0).tolist())


class Solved(NamedTuple):
    """Loss of a batch, its gradient to the log-probs [B, T], and its statistics."""

    loss: float
    gradient: Tensor
    stats: Tensor
    totals: Counts

    @property
    def metrics(self) -> dict[str, float]:
        return summarize(self.stats, self.totals)


def solve(parts: Parts, inputs: LossInputs, totals: Counts | None = None) -> Solved:
    """Run `policy_loss` and its backward on the inputs, whose log-probs stay as they are."""
    lp = inputs.logprobs.detach().clone().requires_grad_()
    totals = totals or count_of(parts, inputs)
    out = policy_loss(parts, replace(inputs, logprobs=lp), totals)
    out.loss.backward()
    assert not out.stats.requires_grad
    assert out.stats.dtype == torch.float64
    return Solved(float(out.loss.detach()), lp.grad, out.stats, totals)


def pad(rows: Sequence[Row], seed: int = 0, dtype: torch.dtype = torch.float64) -> Padded:
    """The rows in [B, T] tensors at random places, garbage elsewhere."""
    r = random.Random(seed)
    width = max(len(row.lp) for row in rows) + 4
    where = [sorted(r.sample(range(width), len(row.lp))) for row in rows]

    def filled(out: Tensor, name: str) -> Tensor:
        for i, row in enumerate(rows):
            for t, value in zip(where[i], getattr(row, name), strict=True):
                out[i, t] = value
        return out

    def tensor(name: str) -> Tensor:
        return filled(torch.tensor([[r.choice(GARBAGE) for _ in range(width)] for _ in rows], dtype=dtype), name)

    def flags(name: str) -> Tensor:
        return filled(torch.tensor([[r.random() < 0.5 for _ in range(width)] for _ in rows]), name)

    mask = torch.zeros(len(rows), width)
    for i, places in enumerate(where):
        mask[i, places] = 1.0
    inputs = LossInputs(
        logprobs=tensor("lp"),
        advantages=tensor("adv"),
        response_mask=mask,
        old_logprobs=tensor("old"),
        ref_logprobs=tensor("ref"),
        rollout_logprobs=tensor("gen"),
        entropy=tensor("entropy"),
        truncated=torch.tensor([row.truncated for row in rows]),
        high_entropy=flags("high_entropy"),
        selected=flags("selected"),
        stale=torch.tensor([row.stale for row in rows]) if any(row.stale for row in rows) else None,
    )
    return Padded(inputs, where)
