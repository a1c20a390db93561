"""The policy that is updated is far from the one that sampled, and nothing limits the ratios.

Many updates on the same responses, without a clip, move single tokens to many times their probability. The importance
ratios then say little, and a few tokens decide the update.
"""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.run_facts import RunFacts

EXPLAINS = frozenset(
    {"learning_rate_high", "entropy_collapse", "length_cap", "length_drift", "gradients_always_clipped"}
)
MIN_P99 = 1.8
"""The 99th percentile of the ratios; a clip of 0.2 holds it below about 1.3."""


def look(run: RunFacts) -> Finding | None:
    """Find ratios whose 99th percentile is large, and that no clip has held."""
    first_p99, last_p99 = run.mean_at_start("ratio/p99"), run.mean_at_end("ratio/p99")
    clipped = (run.mean_at_end("clip_fraction/high") or 0.0) + (run.mean_at_end("clip_fraction/low") or 0.0)
    if first_p99 is None or last_p99 is None or max(first_p99, last_p99) < MIN_P99 or clipped > 0.01:
        return None
    return Finding(
        "ratios_explode",
        "problem",
        min(1.0, max(first_p99, last_p99) / 3),
        f"One token in a hundred has more than {max(first_p99, last_p99):.1f} times the probability that it was "
        "sampled with, and no clip holds it.",
        run.evidence("ratio/p99"),
        f"--set {run.section}.algorithm.num_epochs=1 --set {run.section}.algorithm.num_minibatches=1",
        EXPLAINS,
    )
