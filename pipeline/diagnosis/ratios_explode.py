"""The policy that is updated is far from the one that sampled, and nothing limits the ratios.

Many updates on the same responses, without a clip, move single tokens to many times their probability. The importance
ratios then say little, and a few tokens decide the update.
"""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.reading import Reading

EXPLAINS = frozenset(
    {"learning_rate_high", "entropy_collapse", "length_cap", "length_drift", "gradients_always_clipped"}
)
LARGE = 1.8
"""The 99th percentile of the ratios; a clip of 0.2 holds it below about 1.3."""


def look(run: Reading) -> Finding | None:
    """Find ratios whose 99th percentile is large, and that no clip has held."""
    early, late = run.early("ratio/p99"), run.late("ratio/p99")
    clipped = (run.late("clip_fraction/high") or 0.0) + (run.late("clip_fraction/low") or 0.0)
    if early is None or late is None or max(early, late) < LARGE or clipped > 0.01:
        return None
    return Finding(
        "ratios_explode",
        "problem",
        min(1.0, max(early, late) / 3),
        f"One token in a hundred has more than {max(early, late):.1f} times the probability that it was sampled with, "
        "and no clip holds it.",
        run.shown("ratio/p99"),
        f"--set {run.section}.algorithm.num_epochs=1 --set {run.section}.algorithm.num_minibatches=1",
        EXPLAINS,
    )
