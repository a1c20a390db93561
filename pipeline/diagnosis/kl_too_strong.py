"""The KL term costs as much as the reward brings, so the policy stays where the reference is."""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.run_facts import RunFacts

LARGE_COEF, LARGE_COST = 1.0, 0.5


def look(run: RunFacts) -> Finding | None:
    """Find a large KL coefficient, or a KL that takes a good part of the reward."""
    coef, kl, reward_std = (
        run.mean_at_end("kl/coef"),
        run.mean_at_end("reward/kl_per_response") or 0.0,
        run.mean_at_end("reward/std"),
    )
    if not coef or not reward_std:
        return None
    cost = coef * kl / reward_std if kl else 0.0
    if coef < LARGE_COEF and cost < LARGE_COST:
        return None
    return Finding(
        "kl_too_strong",
        "problem",
        min(1.0, max(cost, 0.6)),
        f"The KL coefficient is {coef:g}"
        + (
            f", and the KL takes {cost:.0%} of a standard deviation of the reward."
            if kl
            else "; usual ones are 0 to 0.1."
        ),
        run.evidence("kl/coef", -1) + run.evidence("kl/k1"),
        f"--set {run.section}.algorithm.kl_coef={coef / 100:g}",
    )
