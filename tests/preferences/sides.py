"""Random responses, as tensors and as the doubles' lists."""

import torch

from tests.oracles.preferences import Side
from verizero.pipeline.preferences.base import Responses, Sides, load_preference

LONGEST = 7
Z = 0.3
"""The reference point of kto."""
VARIANTS = [
    ("dpo", {}),
    ("dpo", {"beta": 0.4, "label_smoothing": 0.1}),
    ("dpo", {"nll_coef": 0.7}),
    ("dpo", {"beta": 3.0, "length_average": True, "label_smoothing": 0.2, "nll_coef": 0.3}),
    ("ipo", {}),
    ("ipo", {"beta": 0.5, "length_average": False}),
    ("kto", {}),
    ("kto", {"beta": 0.6, "desirable_weight": 1.3, "undesirable_weight": 0.5}),
    ("orpo", {}),
    ("orpo", {"beta": 0.8}),
    ("simpo", {}),
    ("simpo", {"beta": 1.5, "gamma": 0.4, "label_smoothing": 0.2}),
    ("robust", {}),
    ("robust", {"beta": 0.7, "label_smoothing": 0.3}),
    ("hinge", {}),
    ("hinge", {"beta": 0.6}),
    ("exo", {}),
    ("exo", {"beta": 0.8, "label_smoothing": 0.2}),
    ("apo_zero", {}),
    ("apo_zero", {"beta": 0.7}),
    ("apo_down", {}),
    ("apo_down", {"beta": 0.7}),
    ("apo_zero_unpaired", {}),
    ("apo_zero_unpaired", {"beta": 0.6, "desirable_weight": 1.3, "undesirable_weight": 0.5}),
    ("sppo", {}),
    ("sppo", {"beta": 0.3}),
    ("nca", {}),
    ("nca", {"beta": 0.7}),
    ("bco", {}),
    ("bco", {"beta": 0.7}),
    ("discopop", {}),
    ("discopop", {"beta": 0.4, "tau": 0.6}),
    ("cpo", {}),
    ("cpo", {"beta": 0.5, "label_smoothing": 0.2, "nll_coef": 0.0}),
]


class Random:
    """[B, T] log-probs of both sides over ragged masks, in float64."""

    def __init__(self, seed, num_chosen=4, num_rejected=4):
        g = torch.Generator().manual_seed(seed)
        self.num_chosen = num_chosen
        rows = num_chosen + num_rejected
        self.lp = -torch.randn(rows, LONGEST, generator=g, dtype=torch.float64).abs() - 0.02
        self.ref = self.lp + 0.5 * torch.randn(rows, LONGEST, generator=g, dtype=torch.float64)
        lengths = torch.randint(1, LONGEST + 1, (rows,), generator=g)
        self.mask = torch.arange(LONGEST) < lengths[:, None]

    def sides(self, lp=None, z=0.0):
        lp = self.lp if lp is None else lp
        n, lengths = self.num_chosen, self.mask.sum(1).to(lp.dtype)
        sums, refs = (lp * self.mask).sum(1), (self.ref * self.mask).sum(1)
        return Sides(*(Responses(sums[i], lengths[i], refs[i]) for i in (slice(n), slice(n, None))), z)

    def lists(self, lp=None):
        lp = self.lp if lp is None else lp
        rows = [Side(a[m].tolist(), b[m].tolist()) for a, b, m in zip(lp, self.ref, self.mask, strict=True)]
        return rows[: self.num_chosen], rows[self.num_chosen :]


def losses_of(name, params, batch, lp=None):
    checked, loss = load_preference(name, params)
    return loss(checked, batch.sides(lp, Z if checked.needs_divergence else 0.0))


def gradient(name, params, batch):
    lp = batch.lp.clone().requires_grad_()
    losses_of(name, params, batch, lp).values.mean().backward()
    return lp.grad
