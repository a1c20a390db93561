"""Every response has the same reward, whatever it says: the reward function returns a constant.

A pattern that matches anything, or one that no response is written in, an argument of another name, an exception that
is caught: the function is called and its result says nothing. Groups are then equal, and no gradient is left.
"""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Evidence, Finding
from verizero.pipeline.diagnosis.group_answers import group_answers
from verizero.pipeline.diagnosis.run_facts import ROLLOUTS, RunFacts

EXPLAINS = frozenset({"too_easy", "too_hard", "learning_rate_low", "advantages_vanish", "wrong_references"})
MIN_RESPONSES, MIN_DIFFERING, MIN_MAJORITIES, MAX_CUT = 40, 0.3, 0.1, 0.9


def look(run: RunFacts) -> Finding | None:
    """Find one reward for all responses, though some that get it must be right and others wrong."""
    rewards = {s.row.reward for s in run.samples}
    if len(run.samples) < MIN_RESPONSES or len(rewards) != 1 or None in rewards or run.evaluations:
        return None  # an evaluation tells whether the policy is right, and other rules ask it
    answers = group_answers(run)
    if answers is None:
        return None
    reward = next(iter(rewards))
    groups = len({(s.row.step, s.row.prompt_id) for s in run.samples})
    accepts = answers.accepted > 0
    if accepts:
        shown = [s for pair in answers.differing[:2] for s in pair]
        if len(answers.differing) < MIN_DIFFERING * groups:
            return None
    else:
        # A policy that knows nothing of its task answers each time differently: then the prompts are too hard.
        shown = list(answers.refused_majorities[:3])
        if answers.majorities < MIN_MAJORITIES * groups or (run.mean_at_start("truncated") or 0.0) > MAX_CUT:
            return None
    share = len(answers.differing) / groups if accepts else answers.majorities / groups
    why = (
        f"in {share:.0%} of the groups responses with different answers get it"
        if accepts
        else f"in {share:.0%} of the groups most responses agree on an answer, and none is ever right"
    )
    return Finding(
        "constant_reward",
        "problem",
        min(1.0, 0.7 + share),
        f"All {len(run.samples)} responses have the reward {reward:g}, and {why}: the reward function returns a "
        "constant.",
        (
            *run.evidence("groups/without_signal"),
            *(Evidence(ROLLOUTS, s.line, f"reward {reward:g}: {s.row.response!r:.60}") for s in shown),
        ),
        "call the reward function by hand with a right and a wrong response",
        EXPLAINS,
    )
