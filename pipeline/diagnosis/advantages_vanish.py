"""Rewards are neither all right nor all wrong, but equal within each group, so that advantages are zero.

The members of a group are copies: the same seed for all, a temperature near 0, or responses that are put in the wrong
groups. Prompts differ, samples of a prompt do not.
"""

from __future__ import annotations

from pipeline.diagnosis.finding import Finding
from pipeline.diagnosis.reading import Reading

EXPLAINS = frozenset({"too_easy", "too_hard", "learning_rate_low", "starvation", "false_positives"})
NEARLY_ALL, HALF, SOME = 0.8, 0.5, 0.1
COLD = 0.4
"""A temperature at which samples of one prompt are nearly all alike."""


def look(run: Reading) -> Finding | None:
    """Find groups that are all right or all wrong although rewards lie in the middle."""
    right, wrong = (run.share(f"groups/{name}", "groups/sampled") for name in ("all_right", "all_wrong"))
    reward = run.early("reward/sampled")
    if right is None or wrong is None or reward is None or right + wrong < HALF:
        return None
    cold = (run.early("temperature") or 1.0) < COLD
    if not cold and (right + wrong < NEARLY_ALL or min(right, wrong) < SOME):
        return None
    return Finding(
        "advantages_vanish",
        "problem",
        right + wrong,
        f"{right + wrong:.0%} of the groups have equal rewards although the mean reward is {reward:.2f}: the responses "
        "to a prompt hardly differ.",
        run.shown("groups/all_right") + run.shown("groups/all_wrong"),
        "--set rollout.temperature=1"
        if cold
        else "read the responses of one prompt in rollouts.jsonl: equal ones have one seed, or are joined wrongly",
        EXPLAINS,
    )
