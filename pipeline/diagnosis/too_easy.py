"""Nearly every group is all right from the start, so that nothing is left to learn.

Prompts that the policy solves always teach it nothing, and cost as much as others. A run that ends with all groups
right has learned its task if it solves held-out prompts as well; if not, its training prompts are the easier ones.
"""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.run_facts import RunFacts

EXPLAINS = frozenset({"learning_rate_low", "prompts_repeat", "entropy_collapse"})
MIN_ALL_RIGHT, MIN_RIGHT, MIN_GAP = 0.6, 0.75, 0.1


def look(run: RunFacts) -> Finding | None:
    """Find that most groups are all right: from the first steps, or soon after, in training only."""
    all_right_at_start = run.share("groups/all_right", "groups/sampled")
    all_right_at_end = run.share("groups/all_right", "groups/sampled", at_end=True)
    right = run.share_right()
    if (
        all_right_at_start is None
        or all_right_at_end is None
        or right is None
        or right < MIN_RIGHT
        or all_right_at_end < MIN_ALL_RIGHT
    ):
        return None
    if all_right_at_start < MIN_ALL_RIGHT and not run.training_is_ahead(MIN_GAP):
        return None
    return Finding(
        "too_easy",
        "problem" if all_right_at_start >= MIN_ALL_RIGHT else "warning",
        all_right_at_end,
        f"{right:.0%} of the first responses are right, and in {all_right_at_end:.0%} of the last groups every "
        "response is: these prompts teach nothing any more.",
        run.evidence("groups/all_right"),
        "--set rl.select.keep=informative skips such groups; harder prompts are better",
        EXPLAINS,
    )
