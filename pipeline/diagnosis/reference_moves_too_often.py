"""The reference follows the policy so closely that the KL term holds nothing.

A reference that is refreshed at every step is the policy itself: the KL to it is zero, and the policy drifts as if
there were no such term, although it was paid for.
"""

from __future__ import annotations

from itertools import pairwise

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.run_facts import RunFacts

EXPLAINS = frozenset({"learning_rate_low", "entropy_collapse"})
MIN_SHARE_MOVED = 0.6


def look(run: RunFacts) -> Finding | None:
    """Find a reference with a new version in most steps, under a KL coefficient that was meant to hold."""
    versions, coef = run.series("reference/version"), run.mean_at_end("kl/coef") or 0.0
    if len(versions) < 10 or coef == 0:
        return None
    share_moved = sum(a.value != b.value for a, b in pairwise(versions)) / (len(versions) - 1)
    if share_moved < MIN_SHARE_MOVED:
        return None
    return Finding(
        "reference_moves_too_often",
        "warning",
        share_moved,
        f"The reference moved in {share_moved:.0%} of the steps, so the KL term with coefficient {coef:g} holds "
        "nothing.",
        run.evidence("reference/version"),
        f"--set '{run.section}.reference={{schedule: every_round}}'",
        EXPLAINS,
    )
