"""R1-Zero: GRPO with a weak KL to a reference that moves every round.

J as in GRPO, with pi_ref replaced by pi at the start of each round
"""

from __future__ import annotations

from pipeline.algorithms import grpo
from pipeline.algorithms.base import KlCoef, ReferenceName

SOURCE = "arXiv:2501.12948; 2402.03300"
DEPARTURES: tuple[str, ...] = (
    "the reference moves once a round; the paper replaces it every 400 steps",
    "the clip is GRPO's 0.2",
)


class Params(grpo.Params):
    """GRPO's numbers, as R1-Zero has them."""

    kl_coef: KlCoef = 0.001
    reference: ReferenceName = "every_round"


parts = grpo.parts
