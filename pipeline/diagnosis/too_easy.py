"""Nearly every group is all right from the start, so that nothing is left to learn.

Prompts that the policy solves always teach it nothing, and cost as much as others. A run that ends with all groups
right has learned its task if it solves held-out prompts as well; if not, its training prompts are the easier ones.
"""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.reading import Reading

EXPLAINS = frozenset({"learning_rate_low", "prompts_repeat", "entropy_collapse"})
MANY, RIGHT, GAP = 0.6, 0.75, 0.1


def look(run: Reading) -> Finding | None:
    """Find that most groups are all right in the first steps, or most responses are right and groups soon follow."""
    first = run.share("groups/all_right", "groups/sampled")
    last = run.share("groups/all_right", "groups/sampled", late=True)
    right = run.correct()
    if first is None or last is None or right is None or right < RIGHT or last < MANY:
        return None
    if first < MANY and not run.is_ahead(GAP):
        return None
    return Finding(
        "too_easy",
        "problem" if first >= MANY else "warning",
        last,
        f"{right:.0%} of the first responses are right, and in {last:.0%} of the last groups every response is: these "
        "prompts teach nothing any more.",
        run.shown("groups/all_right"),
        "--set rl.select.keep=informative skips such groups; harder prompts are better",
        EXPLAINS,
    )
