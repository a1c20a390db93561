"""R1-Zero: GRPO with a weak KL to a reference that moves every round.

J as in GRPO, with pi_ref replaced by pi at the start of each round
"""

from __future__ import annotations

from verizero.pipeline.algorithms import grpo
from verizero.pipeline.algorithms.base import KlCoef, ReferenceName, one_update

SOURCE = "arXiv:2501.12948; 2402.03300"
DEPARTURES: tuple[str, ...] = (
    "the reference moves once a round; the paper replaces it every 400 steps",
    "the clip is GRPO's 0.2; the supplement of doi:10.1038/s41586-025-09422-z has 10, which hardly ever acts",
    one_update(16),
)


class Params(grpo.Params):
    """GRPO's numbers, as R1-Zero has them."""

    kl_coef: KlCoef = 0.001
    reference: ReferenceName = "every_round"


parts = grpo.parts
