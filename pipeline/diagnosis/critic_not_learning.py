"""The critic predicts the returns no better than a constant would, from the first step to the last.

Advantages with a critic are returns less its values. Values that are noise, or always the same, add noise to each of
them. A critic's learning rate is five to ten times the policy's: far below that it stays what it was at the start, and
far above it never settles.
"""

from __future__ import annotations

from statistics import fmean

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.run_facts import NUM_COMPARED, RunFacts

EXPLAINS = frozenset({"learning_rate_low", "advantages_vanish"})
MIN_STEPS, USEFUL_VARIANCE, HARMFUL_VARIANCE = 10, 0.01, -0.01
"""Steps that are needed; shares of the variance of the returns: of any use, and worse than a constant."""


def look(run: RunFacts) -> Finding | None:
    """Find a critic that explains nothing of the returns in any few steps in a row."""
    values = [p.value for p in run.series("critic/explained_variance")]
    if len(values) < MIN_STEPS:
        return None
    best = max(fmean(values[i : i + NUM_COMPARED]) for i in range(len(values) - NUM_COMPARED + 1))
    if best >= USEFUL_VARIANCE:
        return None
    critic_rate, policy_rate = run.mean_at_end("critic/learning_rate") or 0.0, run.mean_at_end("learning_rate") or 0.0
    # A critic that moves a lot and is worse than a constant takes steps that are too large.
    better_rate = (
        critic_rate / 10 if fmean(values[NUM_COMPARED:]) < HARMFUL_VARIANCE else 10 * max(critic_rate, policy_rate)
    )
    return Finding(
        "critic_not_learning",
        "warning",
        0.8,
        f"The critic never explained more than {max(0.0, best):.1%} of the variance of the returns over "
        f"{NUM_COMPARED} steps.",
        run.evidence("critic/explained_variance") + run.evidence("critic/learning_rate", -1),
        f"--set rl.algorithm.critic_learning_rate={better_rate:.0e}",
        EXPLAINS,
    )
