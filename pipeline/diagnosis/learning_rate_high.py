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
MIN_STEPS, MIN_CUT_MORE, ENTROPY_FACTOR = 10, 0.3, 2.0
"""Limits if no distance is logged: steps, more responses cut at the end than at first, change of the entropy."""
MIN_FALL = 0.05
"""Share of the range of the rewards."""


def look(run: RunFacts) -> Finding | None:
    """Find a policy that is far from its reference at once, while rewards fall."""
    if not run.series("kl/k1"):
        return _by_the_rewards(run)
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


def _by_the_rewards(run: RunFacts) -> Finding | None:
    """Find rewards that fall by half, and responses that no longer end or are no longer sure, without a distance."""
    rewards, cut, entropy = (run.series(name) for name in ("reward/sampled", "truncated", "entropy"))
    last_reward = run.mean_at_end("reward/sampled")
    if last_reward is None or len(rewards) < MIN_STEPS:
        return None
    first_reward = max(p.value for p in rewards[:2])
    fall = first_reward - last_reward
    cut_more = cut[-1].value - cut[0].value if cut else 0.0
    factor = entropy[-1].value / max(entropy[0].value, 1e-6) if entropy else 1.0
    if fall < max(MIN_FALL * run.reward_range, first_reward / 2) or (
        cut_more < MIN_CUT_MORE and 1 / ENTROPY_FACTOR < factor < ENTROPY_FACTOR
    ):
        return None
    rate = max((p.value for p in run.series("learning_rate")), default=0.0)
    return Finding(
        "learning_rate_high",
        "problem",
        0.9,
        f"The reward falls from {first_reward:.2f} to {last_reward:.2f} under a learning rate of {rate:.1e}, and "
        + (f"{cut[-1].value:.0%} of the responses no longer end." if cut_more >= MIN_CUT_MORE else "")
        + (f"the entropy changes by a factor of {factor:.1f}." if cut_more < MIN_CUT_MORE else ""),
        run.evidence("reward/sampled", 0, 4, -1) + run.evidence("truncated") + run.evidence("entropy"),
        f"--set {run.section}.optimizer.learning_rate={rate / 10:.0e}",
        EXPLAINS | {"end_token_missing", "learning_rate_low"},
    )
