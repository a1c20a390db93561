"""Rewards are neither all right nor all wrong, but equal within each group, so that advantages are zero.

The members of a group are copies: the same seed for all, a temperature near 0, or responses that are put in the wrong
groups. Prompts differ, samples of a prompt do not. If rewards differ as they are sampled, and not in the update, they
were joined wrongly between the two.
"""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.run_facts import RunFacts

EXPLAINS = frozenset({"too_easy", "too_hard", "learning_rate_low", "starvation", "false_positives"})
NEARLY_ALL_GROUPS, HALF_OF_GROUPS, SOME_GROUPS = 0.8, 0.5, 0.1
COLD_TEMPERATURE = 0.4
"""A temperature at which samples of one prompt are nearly all alike."""


def look(run: RunFacts) -> Finding | None:
    """Find equal rewards in the groups of the update, or groups that are all right or all wrong as they are sampled."""
    return _mixed_in_update(run) or _equal_when_sampled(run) or _equal_in_groups(run)


def _equal_in_groups(run: RunFacts) -> Finding | None:
    """Find groups without signal where no response is logged, and rewards that differ between the groups."""
    without_signal, others = run.mean_at_start("groups/without_signal"), run.mean_at_start("reward/others_std")
    if run.samples or without_signal is None or without_signal < NEARLY_ALL_GROUPS or not others:
        return None
    return Finding(
        "advantages_vanish",
        "problem",
        without_signal,
        f"{without_signal:.0%} of the groups have equal rewards, though rewards differ by {others:.2g} between them: "
        "the responses to a prompt hardly differ, or get one reward.",
        run.evidence("groups/without_signal") + run.evidence("reward/others_std"),
        "read the responses of one prompt",
        EXPLAINS,
    )


def _mixed_in_update(run: RunFacts) -> Finding | None:
    """Find that the groups of the update have no signal, and those that were sampled have."""
    without_signal = run.mean_at_start("groups/without_signal")
    shares = [run.share(f"groups/{name}", "groups/sampled") for name in ("all_right", "all_wrong", "equal")]
    equal = sum(share for share in shares if share is not None)
    if without_signal is None or without_signal < NEARLY_ALL_GROUPS or shares[0] is None or equal > HALF_OF_GROUPS:
        return None
    return Finding(
        "advantages_vanish",
        "problem",
        min(1.0, without_signal - equal + 0.3),
        f"In the update {without_signal:.0%} of the groups have equal rewards, and of the sampled groups "
        f"{equal:.0%}: the rewards of a group are joined or averaged before the advantages are computed.",
        run.evidence("groups/without_signal") + run.evidence("groups/all_right") + run.evidence("advantage/std"),
        "read the code of your own that gives rewards to rows; rewards in rollouts.jsonl are those before it",
        EXPLAINS,
    )


def _equal_when_sampled(run: RunFacts) -> Finding | None:
    """Find groups that are all right or all wrong although rewards lie in the middle."""
    right, wrong = (run.share(f"groups/{name}", "groups/sampled") for name in ("all_right", "all_wrong"))
    reward = run.mean_at_start("reward/sampled")
    if right is None or wrong is None or reward is None or right + wrong < HALF_OF_GROUPS:
        return None
    is_cold = (run.mean_at_start("temperature") or 1.0) < COLD_TEMPERATURE
    if not is_cold and (right + wrong < NEARLY_ALL_GROUPS or min(right, wrong) < SOME_GROUPS):
        return None
    return Finding(
        "advantages_vanish",
        "problem",
        right + wrong,
        f"{right + wrong:.0%} of the groups have equal rewards although the mean reward is {reward:.2f}: the responses "
        "to a prompt hardly differ.",
        run.evidence("groups/all_right") + run.evidence("groups/all_wrong"),
        "--set rollout.temperature=1"
        if is_cold
        else "read the responses of one prompt in rollouts.jsonl: equal ones have one seed, or are joined wrongly",
        # Where responses hardly differ, the few groups with a signal move the policy in jumps.
        EXPLAINS | ({"learning_rate_high", "entropy_collapse"} if is_cold else frozenset()),
    )
