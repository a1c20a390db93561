"""The objective of distillation as choices and formulas. Loads no tensors; `rl/distillation.py` computes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Divergence = Literal["reverse_kl", "forward_kl", "jsd", "mixed"]
Over = Literal["vocabulary", "top_k", "sampled"]
StaleWeights = Literal["token", "prefix"]

FORMULAS: dict[Divergence, str] = {
    "reverse_kl": "sum_v pi(v) (log pi(v) - log q(v))",
    "forward_kl": "sum_v q(v) (log q(v) - log pi(v))",
    "jsd": "{beta:g} KL(q || m) + (1 - {beta:g}) KL(pi || m), m = {beta:g} q + (1 - {beta:g}) pi",
    "mixed": "{beta:g} KL(q || pi) + (1 - {beta:g}) KL(pi || q)",
}
"""D at one token; pi is the policy's distribution of the next token and q the teacher's."""
OVER: dict[Over, str] = {
    "vocabulary": "all tokens",
    "top_k": "the teacher's {top_k} most likely tokens, and one for all others together",
    "sampled": "the sampled token alone: log pi(y_t) - log q(y_t), whose mean over samples is the reverse KL",
}
LOG_OUTSIDE = -100.0
"""Log-prob that a teacher with `zero_outside_topk` gives all tokens but its k most likely ones, as in NeMo-RL."""
ZERO_OUTSIDE = (
    "all tokens; q is that of the teacher's {top_k} most likely ones alone, and exp({outside:g}) of each other token"
)
STALE: dict[StaleWeights, str] = {
    "token": "pi(y_t) / pi_gen(y_t)",
    "prefix": "prod_(s {until} t) pi(y_s) / pi_gen(y_s)",
}
"""The weight of a token in a response of an older policy pi_gen."""


@dataclass(frozen=True, slots=True)
class Objective:
    """The divergence to the teacher that distillation minimises."""

    divergence: Divergence = "reverse_kl"
    over: Over = "vocabulary"
    beta: float = 0.5
    """jsd: weight of the teacher in the mixture; mixed: weight of KL(teacher || policy)."""
    top_k: int = 0
    temperature: float = 1.0
    """Both distributions are softmax(logits / temperature)."""
    discount: float = 0.0
    """Weight of the divergence one token later in the credit of a token; 0: each token for its own."""
    zero_outside_topk: bool = False
    """top_k: the teacher gives all other tokens nothing; else they are one outcome."""
    stale_weights: StaleWeights | None = None
    """Importance weights on responses of an older policy; None: they count as if the present one had sampled them."""
    stale_cap: float = 2.0
    """No such weight is above this."""
    drift_gamma: float = 0.0
    """Further weight of a response's first token, which falls to 0 with the divergence of the tokens before."""


def explain(objective: Objective, coef: float | None = None) -> str:
    """Return a page of text: the objective with its numbers, or the term of RL's loss with that coefficient."""
    over = ZERO_OUTSIDE if objective.zero_outside_topk else OVER[objective.over]
    besides = "" if coef is None else f"besides {coef:g} J, "
    gamma = objective.drift_gamma
    weights = ("u_t " if gamma else "") + ("w_t " if objective.stale_weights else "")
    lines = [
        f"distillation  {objective.divergence} over {objective.over}  (arXiv:2306.13649)",
        f"minimise      {besides}J = 1/sum_i |y_i| sum_i sum_t {weights}D_t, y ~ pi (no gradient through the sampling)",
        f"D_t           {FORMULAS[objective.divergence].format(beta=objective.beta)}",
        f"over          {over.format(top_k=objective.top_k, outside=LOG_OUTSIDE)}",
        f"temperature   {objective.temperature:g}, of both distributions",
    ]
    if gamma:
        lines.append(
            f"u_t           1 + {gamma:g} (1 - sum_(s < t) |D_s| / sum_s |D_s|), no gradient  (arXiv:2606.22600)"
        )
    if objective.stale_weights:
        weight = STALE[objective.stale_weights].format(until="<=" if objective.over == "sampled" else "<")
        lines.append(
            f"w_t           1; in responses of an older policy min({weight}, {objective.stale_cap:g}), no gradient"
        )
    if objective.discount:
        lines.append(
            f"credit        + log pi(y_t) sum_(s > t) {objective.discount:g}^(s - t) D_s, for the tokens that follow"
        )
    return "\n".join(lines)
