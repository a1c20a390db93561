"""The first updates throw the policy far away, and the reward falls.

An update that is too large makes the policy worse everywhere at once. Rewards drop within a few steps, and the
distance to the reference grows to tenths of a nat a token, which careful runs never reach.
"""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.reading import Reading

EXPLAINS = frozenset(
    {"entropy_collapse", "length_cap", "length_drift", "too_hard", "wrong_references", "false_negatives"}
)
FAR = 0.1
"""Nats a token between policy and reference within the first steps."""
FALL = 0.05
"""Share of the range of the rewards."""


def look(run: Reading) -> Finding | None:
    """Find a policy that is far from its reference at once, while rewards fall."""
    far, first, late = run.early("kl/k1"), run.series("reward/sampled"), run.late("reward/sampled")
    if far is None or late is None or not first or far < FAR or late > first[0].value - FALL * run.reward_range:
        return None
    rate = float(run.setting(run.section, "optimizer", "learning_rate", default=0.0))
    return Finding(
        "learning_rate_high",
        "problem",
        min(1.0, 0.6 + far),
        f"Within the first steps the policy is {far:.2f} nats a token from its reference, and the reward falls from "
        f"{first[0].value:.2f} to {late:.2f}.",
        run.shown("kl/k1", 0, 4, -1) + run.shown("reward/sampled"),
        f"--set {run.section}.optimizer.learning_rate={rate / 10:.0e}",
        EXPLAINS,
    )
