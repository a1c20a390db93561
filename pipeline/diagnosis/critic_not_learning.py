"""The critic predicts the returns no better than a constant would, from the first step to the last.

Advantages with a critic are returns less its values. Values that are noise, or always the same, add noise to each of
them. A critic's learning rate is five to ten times the policy's: far below that it stays what it was at the start, and
far above it never settles.
"""

from __future__ import annotations

from statistics import fmean

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.reading import FEW, Reading

EXPLAINS = frozenset({"learning_rate_low", "advantages_vanish"})
FEWEST, USEFUL, WORSE = 10, 0.01, -0.01
"""Steps that are needed; shares of the variance of the returns: of any use, and worse than a constant."""


def look(run: Reading) -> Finding | None:
    """Find a critic that explains nothing of the returns in any few steps in a row."""
    values = [p.value for p in run.series("critic/explained_variance")]
    if len(values) < FEWEST:
        return None
    best = max(fmean(values[i : i + FEW]) for i in range(len(values) - FEW + 1))
    if best >= USEFUL:
        return None
    own, policy = run.late("critic/learning_rate") or 0.0, run.late("learning_rate") or 0.0
    # A critic that moves a lot and is worse than a constant takes steps that are too large.
    wanted = own / 10 if fmean(values[FEW:]) < WORSE else 10 * max(own, policy)
    return Finding(
        "critic_not_learning",
        "warning",
        0.8,
        f"The critic never explained more than {max(0.0, best):.1%} of the variance of the returns over {FEW} steps.",
        run.shown("critic/explained_variance") + run.shown("critic/learning_rate", -1),
        f"--set rl.algorithm.critic_learning_rate={wanted:.0e}",
        EXPLAINS,
    )
