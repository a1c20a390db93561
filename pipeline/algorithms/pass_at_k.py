"""Pass@k: a response is worth what it adds to the best of k, so that a group is rewarded for its best try.

J   = mean_i (1/L) sum_t min(r_t A_i, clip(r_t, 1 - clip_low, 1 + clip_high) A_i),  L and r_t as in Dr. GRPO
A_i = the mean, over the subsets S of k responses of the group, of best of S - best of S without i
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from verizero.pipeline.algorithms import dr_grpo
from verizero.pipeline.algorithms.base import ClipParams, option
from verizero.pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2503.19595; subsets 2505.15201"
DEPARTURES: tuple[str, ...] = (
    "PPO's clip where a batch is used several times",
    "the baseline is the best of the subset's others; 2505.15201 has other baselines too",
    "undivided, as the gradient of the expected best asks; std: group divides as verl does",
)


class Params(ClipParams):
    """The numbers of pass@k."""

    k: int | None = option("best_of_k", "k")
    std: Literal["none", "group"] = option("best_of_k", "std")
    ddof: int = option("best_of_k", "ddof")
    eps: float = option("best_of_k", "eps")


def parts(params: Params) -> Parts:
    """Return Dr. GRPO's parts with the gain over the best of k."""
    return replace(dr_grpo.parts(params), advantage=Part.of("best_of_k", params))
