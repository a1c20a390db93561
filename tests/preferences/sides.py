"""Random responses, as tensors and as the doubles' lists."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.oracles.preferences import Side
from verizero.pipeline.preferences.base import Losses, PreferenceParams, Responses, Sides, load_preference, weighed

LONGEST = 7
Z = 0.3
"""The reference point of kto."""
DIVERGENCES: list[dict[str, Any]] = [
    {"f_divergence": "forward_kl"},
    {"f_divergence": "js_divergence"},
    {"f_divergence": "alpha_divergence", "f_alpha": 0.3},
]
MARGINS = ("discopop", "dpo", "exo", "hinge", "ipo", "robust")
"""The losses that take an f-divergence."""
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("dpo", {}),
    ("dpo", {"beta": 0.4, "label_smoothing": 0.1}),
    ("dpo", {"nll_coef": 0.7}),
    ("dpo", {"beta": 3.0, "length_average": True}),
    ("dpo", {"length_average": True, "label_smoothing": 0.2, "f_divergence": "js_divergence"}),
    ("dpo", {"wpo": True, "nll_coef": 0.3}),
    ("ipo", {}),
    ("ipo", {"beta": 0.5, "length_average": False}),
    ("kto", {}),
    ("kto", {"beta": 0.6, "desirable_weight": 1.3, "undesirable_weight": 0.5}),
    ("orpo", {}),
    ("orpo", {"beta": 0.8}),
    ("orpo", {"wpo": True}),
    ("simpo", {}),
    ("simpo", {"beta": 1.5, "gamma": 0.4, "label_smoothing": 0.2}),
    ("simpo", {"wpo": True}),
    ("robust", {}),
    ("robust", {"beta": 0.7, "label_smoothing": 0.3}),
    ("hinge", {}),
    ("hinge", {"beta": 0.6, "wpo": True}),
    ("exo", {}),
    ("exo", {"beta": 0.8, "label_smoothing": 0.2}),
    ("apo_zero", {}),
    ("apo_zero", {"beta": 0.7, "wpo": True}),
    ("apo_down", {}),
    ("apo_down", {"beta": 0.7}),
    ("apo_zero_unpaired", {}),
    ("apo_zero_unpaired", {"beta": 0.6, "desirable_weight": 1.3, "undesirable_weight": 0.5}),
    ("sppo", {}),
    ("sppo", {"beta": 0.3}),
    ("nca", {}),
    ("nca", {"beta": 0.7}),
    ("dpo", {"ld_alpha": 0.3}),
    ("dpo", {"ld_alpha": 0.0, "length_average": True, "nll_coef": 0.4, "wpo": True}),
    ("bco", {}),
    ("bco", {"beta": 0.7}),
    ("discopop", {}),
    ("discopop", {"beta": 0.4, "tau": 0.6}),
    ("aot", {}),
    ("aot", {"beta": 0.7, "label_smoothing": 0.2}),
    ("mpo", {}),
    ("mpo", {"losses": [{"name": "ipo", "beta": 0.4}, {"name": "hinge", "weight": 0.3}], "nll_coef": 0, "wpo": True}),
    ("cpo", {}),
    ("cpo", {"beta": 0.5, "label_smoothing": 0.2, "nll_coef": 0.0}),
    *((name, {"beta": 0.3, **divergence}) for name in MARGINS for divergence in DIVERGENCES),
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
        # log sum_v p(v)^2 of each token's distribution, at most 0 and at least twice the token's log-prob
        self.collision = 2 * self.lp * torch.rand(rows, LONGEST, generator=g, dtype=torch.float64)

    @property
    def weights(self) -> Tensor:
        """[B] WPO's weights of the responses."""
        return (((self.lp - self.collision) * self.mask).sum(1) / self.mask.sum(1)).exp()

    def sides(self, params: PreferenceParams, lp: Tensor | None = None, z: float = 0.0) -> Sides:
        lp = self.lp if lp is None else lp
        n, lengths = self.num_chosen, self.mask.sum(1).to(lp.dtype)
        counted = self.mask.to(lp.dtype)
        if params.tail_weight != 1:
            shorter = torch.minimum(lengths[:n], lengths[n:]).repeat(2)
            counted = torch.where(torch.arange(LONGEST) < shorter[:, None], counted, params.tail_weight * counted)
        sums, refs, weighed = (lp * self.mask).sum(1), (self.ref * counted).sum(1), (lp * counted).sum(1)
        weights = self.weights[:n] * self.weights[n:] if params.needs_weights else None
        matched = None
        if params.sorts_pairs:
            margins, ref_margins = (x[:n] - x[n:] for x in (sums.detach(), refs))
            matched = ref_margins.sort().values[margins.argsort().argsort()]
        w, r = (Responses(sums[i], lengths[i], refs[i], weighed[i]) for i in (slice(n), slice(n, None)))
        return Sides(w, r, z, weights, matched)

    def lists(self, lp: Tensor | None = None) -> tuple[list[Side], list[Side]]:
        lp = self.lp if lp is None else lp
        each = zip(lp, self.ref, self.mask, self.weights.tolist(), strict=True)
        rows = [Side(a[m].tolist(), b[m].tolist(), weight) for a, b, m, weight in each]
        return rows[: self.num_chosen], rows[self.num_chosen :]


def losses_of(name: str, params: dict[str, Any], batch: Random, lp: Tensor | None = None) -> Losses:
    checked, loss = load_preference(name, params)
    sides = batch.sides(checked, lp, Z if checked.needs_divergence else 0.0)
    return weighed(loss(checked, sides), sides)


def gradient(name: str, params: dict[str, Any], batch: Random) -> Tensor:
    lp = batch.lp.clone().requires_grad_()
    losses_of(name, params, batch, lp).values.mean().backward()
    assert lp.grad is not None
    return lp.grad
