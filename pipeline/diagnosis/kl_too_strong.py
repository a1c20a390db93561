"""The KL term costs as much as the reward brings, so the policy stays where the reference is."""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.reading import Reading

LARGE, SHARE = 1.0, 0.5


def look(run: Reading) -> Finding | None:
    """Find a large KL coefficient, or a KL that takes a good part of the reward."""
    coef, paid, reward = run.late("kl/coef"), run.late("reward/kl_per_response") or 0.0, run.late("reward/std")
    if not coef or not reward:
        return None
    share = coef * paid / reward if paid else 0.0
    if coef < LARGE and share < SHARE:
        return None
    return Finding(
        "kl_too_strong",
        "problem",
        min(1.0, max(share, 0.6)),
        f"The KL coefficient is {coef:g}"
        + (
            f", and the KL takes {share:.0%} of a standard deviation of the reward."
            if paid
            else "; usual ones are 0 to 0.1."
        ),
        run.shown("kl/coef", -1) + run.shown("kl/k1"),
        f"--set {run.section}.algorithm.kl_coef={coef / 100:g}",
    )
