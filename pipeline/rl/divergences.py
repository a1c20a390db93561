"""The objective of distillation as choices and formulas. Loads no tensors; `rl/distillation.py` computes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Divergence = Literal["reverse_kl", "forward_kl"]
Over = Literal["vocabulary", "top_k", "sampled"]
StaleWeights = Literal["token"]

FORMULAS: dict[Divergence, str] = {
    "reverse_kl": "sum_v pi(v) (log pi(v) - log q(v))",
    "forward_kl": "sum_v q(v) (log q(v) - log pi(v))",
}
"""D at one token; pi is the policy's distribution of the next token and q the teacher's."""
OVER: dict[Over, str] = {
    "vocabulary": "all tokens",
    "top_k": "the teacher's {top_k} most likely tokens, and one for all others together",
    "sampled": "the sampled token alone: log pi(y_t) - log q(y_t), whose mean over samples is the reverse KL",
}


@dataclass(frozen=True, slots=True)
class Objective:
    """The divergence to the teacher that distillation minimises."""

    divergence: Divergence = "reverse_kl"
    over: Over = "vocabulary"
    top_k: int = 0
    temperature: float = 1.0
    """Both distributions are softmax(logits / temperature)."""
    stale_weights: StaleWeights | None = None
    """Importance weights on responses of an older policy; None: they count as if the present one had sampled them."""
    stale_cap: float = 2.0
    """No such weight is above this."""


def explain(objective: Objective, coef: float | None = None) -> str:
    """Return a page of text: the objective with its numbers, or the term of RL's loss with that coefficient."""
    besides = "" if coef is None else f"besides {coef:g} J, "
    weights = "w_t " if objective.stale_weights else ""
    lines = [
        f"distillation  {objective.divergence} over {objective.over}  (arXiv:2306.13649)",
        f"minimise      {besides}J = 1/sum_i |y_i| sum_i sum_t {weights}D_t, y ~ pi (no gradient through the sampling)",
        f"D_t           {FORMULAS[objective.divergence]}",
        f"over          {OVER[objective.over].format(top_k=objective.top_k)}",
        f"temperature   {objective.temperature:g}, of both distributions",
    ]
    if objective.stale_weights:
        weight = f"min(pi(y_t) / pi_gen(y_t), {objective.stale_cap:g})"
        lines.append(f"w_t           1; in responses of an older policy {weight}, no gradient")
    return "\n".join(lines)
