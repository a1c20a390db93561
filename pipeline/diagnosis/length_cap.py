"""The length limit cuts off a share of the responses, and with them right answers.

A cut response is graded as wrong, or has the reward of `scoring.truncated`. So the policy learns to be short before
it learns to be right. A limit is only too low for answers that would have ended a little later; those that never end
have another cause. A run that has learned to answer within the limit did not need more.
"""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.reading import Reading

EXPLAINS = frozenset({"length_drift", "false_negatives"})
MANY, NEARLY_ALL = 0.15, 0.9
FEW, SOLVED = 0.1, 0.7


def look(run: Reading) -> Finding | None:
    """Find many responses cut in the first steps, while others end by themselves."""
    early = run.early("truncated")
    if early is None or not MANY <= early < NEARLY_ALL:
        return None
    learned = (run.late("truncated") or 0.0) < FEW and (run.correct(late=True) or 0.0) >= SOLVED
    limit = run.setting("rollout", "max_response_tokens")
    larger = "a larger number" if limit is None else str(2 * int(limit))
    return Finding(
        "length_cap",
        "note" if learned else "problem" if early >= 2 * MANY else "warning",
        min(1.0, 0.5 + early),
        f"{early:.0%} of the first responses are cut at {limit} tokens, so right answers count as wrong.",
        run.shown("truncated"),
        f"--set rollout.max_response_tokens={larger}",
        EXPLAINS,
    )
