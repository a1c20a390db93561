"""Engine and trainer compute different probabilities for the same tokens, from the first step on.

Number types are the usual reason: an engine in 8 bits or bfloat16, a trainer in float32. Ratios to the engine's log-
probs then carry noise, and a correction or the same type is needed (arXiv 2510.26788).
"""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.reading import Reading

LARGE, SOME = 0.01, 1e-3


def look(run: Reading) -> Finding | None:
    """Find a distance of engine and trainer that is there from the first steps on."""
    early = run.early("mismatch/k3")
    if early is None or early < SOME:
        return None
    return Finding(
        "engine_mismatch",
        "problem" if early >= LARGE else "warning",
        min(1.0, 0.6 + early),
        f"Engine and trainer differ by {early:.3f} nats a token for the same weights, from the first steps on.",
        run.shown("mismatch/k3") + run.shown("mismatch/p99"),
        "give engine and trainer one number type; algorithm.mismatch_level weighs out small distances only",
    )
