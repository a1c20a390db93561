"""Random responses, as tensors and as the doubles' lists."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pipeline.preferences.base import Responses, Sides
from tests.oracles.preferences import Side

LONGEST = 7
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("dpo", {}),
    ("dpo", {"beta": 0.4, "label_smoothing": 0.1}),
    ("dpo", {"nll_coef": 0.7}),
    ("ipo", {}),
    ("ipo", {"beta": 0.5, "length_average": False}),
    ("kto", {}),
    ("kto", {"beta": 0.6, "desirable_weight": 1.3, "undesirable_weight": 0.5}),
    ("orpo", {}),
    ("orpo", {"beta": 0.8}),
    ("simpo", {}),
    ("simpo", {"beta": 1.5, "gamma": 0.4, "label_smoothing": 0.2}),
]


class Random:
    """[B, T] log-probs of both sides over ragged masks, in float64."""

    def __init__(self, seed: int, num_chosen: int = 4, num_rejected: int = 4) -> None:
        g = torch.Generator().manual_seed(seed)
        self.num_chosen = num_chosen
        rows = num_chosen + num_rejected
        self.lp = -torch.randn(rows, LONGEST, generator=g, dtype=torch.float64).abs() - 0.02
        self.ref = self.lp + 0.5 * torch.randn(rows, LONGEST, generator=g, dtype=torch.float64)
        lengths = torch.randint(1, LONGEST + 1, (rows,), generator=g)
        self.mask = torch.arange(LONGEST) < lengths[:, None]

    def sides(self, lp: Tensor | None = None, z: float = 0.0) -> Sides:
        lp = self.lp if lp is None else lp
        sums, refs, lengths = (lp * self.mask).sum(1), (self.ref * self.mask).sum(1), self.mask.sum(1).to(lp.dtype)
        n = self.num_chosen
        return Sides(Responses(sums[:n], lengths[:n], refs[:n]), Responses(sums[n:], lengths[n:], refs[n:]), z)

    def lists(self, lp: Tensor | None = None) -> tuple[list[Side], list[Side]]:
        lp = self.lp if lp is None else lp
        rows = [Side(a[m].tolist(), b[m].tolist()) for a, b, m in zip(lp, self.ref, self.mask, strict=True)]
        return rows[: self.num_chosen], rows[self.num_chosen :]
