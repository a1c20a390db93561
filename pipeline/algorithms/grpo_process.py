"""GRPO with process supervision: a token answers for the steps that end at or after it.

J as in GRPO, with A_i,t = sum_(j: step j ends at or after t) (r_ij - mean) / (std + eps) in place of A_i
r_ij = the verifier's reward for step j of response i; mean and std are of all r_ij of the group
"""

from __future__ import annotations

from verizero.pipeline.algorithms import grpo
from verizero.pipeline.algorithms.base import CreditName, option

SOURCE = "arXiv:2402.03300 section 4.1.3"
DEPARTURES: tuple[str, ...] = (
    *grpo.DEPARTURES,
    "a response without rewards of steps (no answer, truncated) is one step with its own reward; the paper has none",
    "tokens after the last step count as its own; the paper leaves their advantage open",
)


class Params(grpo.Params):
    """GRPO's numbers, with the rewards of steps in place of the outcome's."""

    credit: CreditName = "process"
    credit_outcome: float = option("process", "outcome", 0.0)


parts = grpo.parts
