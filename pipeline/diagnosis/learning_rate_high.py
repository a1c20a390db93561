"""The first updates throw the policy far away, and the reward falls.

An update that is too large makes the policy worse everywhere at once. Rewards drop within a few steps, and the
distance to the reference grows to tenths of a nat a token, which careful runs never reach.
"""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.run_facts import RunFacts

EXPLAINS = frozenset(
    {"entropy_collapse", "length_cap", "length_drift", "too_hard", "wrong_references", "false_negatives"}
)
MIN_DISTANCE = 0.1
"""Nats a token between policy and reference within the first steps."""
MIN_FALL = 0.05
"""Share of the range of the rewards."""


def look(run: RunFacts) -> Finding | None:
    """Find a policy that is far from its reference at once, while rewards fall."""
    distance, rewards, last_reward = (
        run.mean_at_start("kl/k1"),
        run.series("reward/sampled"),
        run.mean_at_end("reward/sampled"),
    )
    if (
        distance is None
        or last_reward is None
        or not rewards
        or distance < MIN_DISTANCE
        or last_reward > rewards[0].value - MIN_FALL * run.reward_range
    ):
        return None
    rate = float(run.setting(run.section, "optimizer", "learning_rate", default=0.0))
    return Finding(
        "learning_rate_high",
        "problem",
        min(1.0, 0.6 + distance),
        f"Within the first steps the policy is {distance:.2f} nats a token from its reference, and the reward "
        f"falls from {rewards[0].value:.2f} to {last_reward:.2f}.",
        run.evidence("kl/k1", 0, 4, -1) + run.evidence("reward/sampled"),
        f"--set {run.section}.optimizer.learning_rate={rate / 10:.0e}",
        EXPLAINS,
    )
