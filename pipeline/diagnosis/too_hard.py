"""Nearly every group is all wrong, so that no response is better than another and nothing can be learned.

Group-relative advantages are zero where all rewards of a group are equal. A policy learns from RL what it already
does sometimes; what it never does has to come from demonstrations or from easier prompts.
"""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.run_facts import RunFacts

EXPLAINS = frozenset({"learning_rate_low"})
MIN_ALL_WRONG = 0.85


def look(run: RunFacts) -> Finding | None:
    """Find that nearly all groups of the first steps are all wrong."""
    share = run.share("groups/all_wrong", "groups/sampled")
    if share is None or share < MIN_ALL_WRONG:
        return None
    return Finding(
        "too_hard",
        "note" if run.has_learned else "problem",
        share,
        f"In {share:.0%} of the first groups every response is wrong, so the policy has nothing to learn from.",
        run.evidence("groups/all_wrong"),
        "train on easier prompts first, longer by SFT (sft.steps), or with larger groups (group_size)",
        EXPLAINS,
    )
