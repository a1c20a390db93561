"""The policy has become sure of itself while its rewards fell: it samples little and learns nothing new.

Entropy falls in every run that learns. It is a fault where it falls without gain: by an entropy term of the wrong
sign, by updates that are too large, or by a reward that any response gets. A term of the wrong sign is in the recipe,
so a small gain does not excuse it.
"""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.reading import Reading

LESS, GAIN = 0.65, 0.02
LESS_BY_SIGN, GAIN_BY_SIGN = 0.85, 0.2
"""Share of the first entropy that is left, and gain of the reward; the second pair for an entropy term below 0."""


def look(run: Reading) -> Finding | None:
    """Find an entropy that has fallen while the reward has not risen."""
    early, late = run.early("entropy"), run.late("entropy")
    first, last = run.early("reward/sampled"), run.late("reward/sampled")
    coef = run.setting(run.section, "algorithm", "entropy_coef", default=0.0)
    less, gain = (LESS_BY_SIGN, GAIN_BY_SIGN) if coef < 0 else (LESS, GAIN)
    if early is None or late is None or first is None or last is None or late > less * early:
        return None
    if last > first + gain * run.reward_range or (coef >= 0 and run.has_learned):
        return None
    section = f"{run.section}.algorithm.entropy_coef"
    return Finding(
        "entropy_collapse",
        "problem",
        max(0.3, min(1.0, 0.6 + first - last)),
        f"The entropy falls from {early:.3f} to {late:.3f} nats a token, and the reward goes from "
        f"{first:.2f} to {last:.2f}."
        + (f" The entropy term has the coefficient {coef:g}, which rewards being sure." if coef < 0 else ""),
        run.shown("entropy") + run.shown("reward/sampled"),
        f"--set {section}={abs(coef) / 100:g}" if coef < 0 else f"--set {section}=0.003, or a smaller learning rate",
    )
