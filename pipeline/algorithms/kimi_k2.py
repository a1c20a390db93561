"""Kimi K2: a squared regression of the response's log-ratio on its centred reward."""

from __future__ import annotations

from pydantic import Field

from pipeline.algorithms.base import PolicyParams
from pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2507.20534 section 3.2.3; 2501.12599 eq. 3"
DEPARTURES: tuple[str, ...] = (
    "tau has no number in the papers; 0.5 makes the first gradient that of REINFORCE",
    "PTX loss, token budget and temperature decay are off until the recipe gives them numbers",
)


class Params(PolicyParams):
    """Kimi K2's numbers."""

    tau: float = Field(0.5, gt=0, description="log-ratio is pulled to advantage / tau")


def parts(params: Params) -> Parts:
    """Kimi K2's parts."""
    return Parts(
        advantage=Part("group_mean"),
        ratio="sequence_product",
        surrogate=Part("squared", {"tau": params.tau}),
        aggregate="sequence_mean",
        **params.rest(),
    )
