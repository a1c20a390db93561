"""Engine and trainer compute different probabilities for the same tokens, from the first step on.

Number types are the usual reason: an engine in 8 bits or bfloat16, a trainer in float32. Ratios to the engine's log-
probs then carry noise, and a correction or the same type is needed (arXiv 2510.26788).
"""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.run_facts import RunFacts

LARGE_K3, MIN_K3 = 0.01, 1e-3
LARGE_DIFFERENCE, MIN_DIFFERENCE = 0.1, 0.03
"""Mean of |log p - log q| of a token, where no k3 is logged; bfloat16 alone makes about 0.01."""


def look(run: RunFacts) -> Finding | None:
    """Find a distance between engine and trainer in the first steps."""
    k3 = run.mean_at_start("mismatch/k3")
    if k3 is None:
        return _by_differences(run)
    if k3 < MIN_K3:
        return None
    return Finding(
        "engine_mismatch",
        "problem" if k3 >= LARGE_K3 else "warning",
        min(1.0, 0.6 + k3),
        f"Engine and trainer differ by {k3:.3f} nats a token for the same weights, from the first steps on.",
        run.evidence("mismatch/k3") + run.evidence("mismatch/p99"),
        "give engine and trainer one number type; algorithm.mismatch_level weighs out small distances only",
    )


def _by_differences(run: RunFacts) -> Finding | None:
    """Find large differences of log-probs in the first steps, where a trainer logs no k3."""
    difference = run.mean_at_start("mismatch/abs")
    if difference is None or difference < MIN_DIFFERENCE:
        return None
    return Finding(
        "engine_mismatch",
        "problem" if difference >= LARGE_DIFFERENCE else "warning",
        min(1.0, 0.6 + difference),
        f"Log-probs of engine and trainer differ by {difference:.3f} nats a token for the same weights, from the first "
        "steps on.",
        run.evidence("mismatch/abs"),
        "give engine and trainer one number type",
    )
