"""The length limit cuts off a share of the responses, and with them right answers.

A cut response is graded as wrong, or has the reward of `scoring.truncated`. So the policy learns to be short before
it learns to be right. A limit is only too low for answers that would have ended a little later; those that never end
have another cause. A run that has learned to answer within the limit did not need more.
"""

from __future__ import annotations

from verizero.pipeline.diagnosis.end_token_missing import MIN_ANSWERED, share_answered_if_cut
from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.run_facts import RunFacts

EXPLAINS = frozenset({"length_drift", "false_negatives", "too_hard", "constant_reward", "wrong_references"})
MIN_CUT, MAX_CUT = 0.15, 0.9
MAX_CUT_IF_LEARNED, MIN_RIGHT_IF_LEARNED = 0.1, 0.7


def look(run: RunFacts) -> Finding | None:
    """Find many responses cut in the first steps, while others end by themselves."""
    cut = run.mean_at_start("truncated")
    if cut is None or cut < MIN_CUT or (cut >= MAX_CUT and share_answered_if_cut(run.samples) >= MIN_ANSWERED):
        return None
    has_learned = (run.mean_at_end("truncated") or 0.0) < MAX_CUT_IF_LEARNED and (
        run.share_right(at_end=True) or 0.0
    ) >= MIN_RIGHT_IF_LEARNED
    limit = run.setting("rollout", "max_response_tokens")
    better_limit = "a larger number" if limit is None else str(2 * int(limit))
    return Finding(
        "length_cap",
        "note" if has_learned else "problem" if cut >= 2 * MIN_CUT else "warning",
        min(1.0, 0.5 + cut),
        f"{cut:.0%} of the first responses are cut at {'the limit' if limit is None else f'{limit:g} tokens'}, so "
        "right answers count as wrong.",
        run.evidence("truncated"),
        f"--set rollout.max_response_tokens={better_limit}",
        EXPLAINS,
    )
