"""The policy has become sure of itself while its rewards fell: it samples little and learns nothing new.

Entropy falls in every run that learns. It is a fault where it falls without gain: by an entropy term of the wrong
sign, by updates that are too large, or by a reward that any response gets. A term of the wrong sign is in the recipe,
so a small gain does not excuse it.
"""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.run_facts import RunFacts

MAX_ENTROPY_LEFT, MAX_GAIN = 0.65, 0.02
MAX_ENTROPY_LEFT_IF_NEGATIVE, MAX_GAIN_IF_NEGATIVE = 0.85, 0.2
"""Share of the first entropy that is left, and gain of the reward; the second pair for an entropy term below 0."""
MAX_ENTROPY_LEFT_UNTESTED = 0.5
"""The same share where no evaluation shows whether the policy has learned: training rewards wander more."""
EXPLAINS_IF_NEGATIVE = frozenset({"wrong_references"})
"""A policy that is sure agrees with itself on wrong answers too."""


def look(run: RunFacts) -> Finding | None:
    """Find an entropy that has fallen while the reward has not risen."""
    first_entropy, last_entropy = run.mean_at_start("entropy"), run.mean_at_end("entropy")
    first_reward, last_reward = run.mean_at_start("reward/sampled"), run.mean_at_end("reward/sampled")
    coef = run.setting(run.section, "algorithm", "entropy_coef", default=0.0)
    max_left, max_gain = MAX_ENTROPY_LEFT if run.evaluations else MAX_ENTROPY_LEFT_UNTESTED, MAX_GAIN
    if coef < 0:
        max_left, max_gain = MAX_ENTROPY_LEFT_IF_NEGATIVE, MAX_GAIN_IF_NEGATIVE
    if (
        not first_entropy
        or last_entropy is None
        or first_reward is None
        or last_reward is None
        or last_entropy > max_left * first_entropy
    ):
        return None
    least = max_gain * run.reward_range
    if last_reward > first_reward + least or (coef >= 0 and (run.has_learned or run.gain("reward/sampled") > least)):
        return None
    field = f"{run.section}.algorithm.entropy_coef"
    return Finding(
        "entropy_collapse",
        "problem",
        max(0.3, min(1.0, 0.6 + first_reward - last_reward)),
        f"The entropy falls from {first_entropy:.3f} to {last_entropy:.3f} nats a token, and the reward goes from "
        f"{first_reward:.2f} to {last_reward:.2f}."
        + (f" The entropy term has the coefficient {coef:g}, which rewards being sure." if coef < 0 else ""),
        run.evidence("entropy") + run.evidence("reward/sampled"),
        f"--set {field}={abs(coef) / 100:g}" if coef < 0 else f"--set {field}=0.003, or a smaller learning rate",
        EXPLAINS_IF_NEGATIVE if coef < 0 else frozenset(),
    )
