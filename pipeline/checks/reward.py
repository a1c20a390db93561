"""Causes in the rewards of groups: equal ones, components of unequal size, prompts that teach nothing."""

from __future__ import annotations

from statistics import fmean

from verizero.pipeline.checks.cause import also, cause
from verizero.pipeline.checks.finding import Finding
from verizero.pipeline.checks.limits import MIN_RATIO
from verizero.pipeline.checks.run_facts import NUM_COMPARED, RunFacts, by_group

ALL_GROUPS, NEARLY_ALL_GROUPS, HALF_OF_GROUPS, SOME_GROUPS = 0.95, 0.8, 0.5, 0.1
NUM_COPIES = 4
"""Responses of a group that are copies of each other."""
SMALL_MEAN = 0.1
"""The mean of a further component that a verifier of 0 and 1 still decides over."""
MIN_PAIRS, MIN_MISRANKED = 20, 0.05
"""Pairs of a right and a wrong response of one group; the share of them that the reward may put in the wrong order."""


@cause(
    "sample at temperature 1 with 8 or more responses to a prompt, and read those of one prompt",
    explains="too_easy too_hard learning_rate_low starvation false_positives",
)
def advantages_vanish(run: RunFacts) -> Finding | None:
    """Rewards are neither all right nor all wrong, but equal within each group, so that advantages are zero.

    The members of a group are copies: the same seed for all, a temperature near 0, or responses that are put in the
    wrong groups. Prompts differ, samples of a prompt do not. Or the reward function returns one number for all.
    """
    right, wrong = (run.share(f"groups/{name}", "groups/sampled") for name in ("all_right", "all_wrong"))
    reward = run.mean_at_start("reward/sampled")
    if right is None or wrong is None or reward is None or right + wrong < HALF_OF_GROUPS:
        return None
    if not run.is_cold and (right + wrong < NEARLY_ALL_GROUPS or min(right, wrong) < SOME_GROUPS):
        return None
    return Finding(
        right + wrong,
        f"{right + wrong:.0%} of the groups have equal rewards although the mean reward is {reward:.2f}: the responses "
        "to a prompt hardly differ.",
        run.evidence("groups/all_right") + run.evidence("groups/all_wrong"),
        "--set rollout.temperature=1"
        if run.is_cold
        else "read the responses of one prompt in rollouts.jsonl: equal ones have one seed, or are joined wrongly",
        # Where responses hardly differ, the few groups with a signal move the policy in jumps.
        frozenset({"learning_rate_high", "entropy_collapse", "length_drift"} if run.is_cold else ()),
    )


@also("advantages_vanish")
def equal_rewards(run: RunFacts) -> Finding | None:
    """Find that rewards are equal in nearly all groups, and not known to be all right or all wrong."""
    shares, reward = [p.value for p in run.series("groups/without_signal")], run.mean_at_start("reward/sampled")
    known = [run.share(f"groups/{name}", "groups/sampled") or 0.0 for name in ("all_right", "all_wrong")]
    if not shares or reward is None or max(known) >= HALF_OF_GROUPS or run.setting(run.section, "group_size") == 1:
        return None
    if min(fmean(shares[:NUM_COMPARED]), fmean(shares)) < ALL_GROUPS:
        return None
    return Finding(
        0.8,
        f"In {fmean(shares):.0%} of the groups all rewards are equal, from the first step on, and their mean is "
        f"{reward:.2f}: no response is better than another.",
        run.evidence("groups/without_signal") + run.evidence("reward/std") + run.evidence("reward/sampled"),
        "read the responses of one prompt and their rewards: either are copies",
    )


@also("advantages_vanish")
def equal_texts(run: RunFacts) -> Finding | None:
    """Find groups of equal responses whose entropy says that samples would differ: nothing is sampled."""
    first = {row.step for _, row in run.steps[:NUM_COMPARED]}  # a policy may become so sure later
    groups = [g for g in by_group(run.samples) if len(g) >= NUM_COPIES and g[0].row.step in first]
    equal = [group for group in groups if len({s.row.response for s in group}) == 1]
    nats = (run.mean_at_start("entropy") or 0.0) * (run.mean_at_start("length/mean") or 0.0)
    if len(groups) < NUM_COMPARED or len(equal) < NEARLY_ALL_GROUPS * len(groups) or nats < 1:
        return None
    return Finding(
        0.95,
        f"In {len(equal)} of {len(groups)} groups all responses are the same text, although the policy's entropy of "
        f"{nats:.1f} nats a response would make them differ: tokens are chosen, and not sampled.",
        run.evidence("entropy") + run.evidence("groups/without_signal"),
        "let the engine sample at temperature 1: remove do_sample=False, a fixed seed, or a temperature of its own",
    )


@also("reward_scales")
def misranking_components(run: RunFacts) -> Finding | None:
    """Find further components that are far larger than the verifier's part, and rank wrong responses first."""
    names = sorted({name for _, row in run.steps for name in row.metrics if name.startswith("reward/component/")})
    reward, verdict_part = run.mean_at_end("reward/sampled"), run.mean_at_end(names[0]) if names else None
    if reward is None or verdict_part is None or abs(reward) < MIN_RATIO * max(abs(verdict_part), 0.05):
        return None
    pairs = [
        right.row.reward <= wrong.row.reward
        for group in by_group(run.samples)
        for right in group
        for wrong in group
        if right.row.score >= 1 > wrong.row.score and right.row.reward is not None and wrong.row.reward is not None
    ]
    if len(names) < 2 or len(pairs) < MIN_PAIRS or (share := sum(pairs) / len(pairs)) < MIN_MISRANKED:
        return None  # with few pairs, the row of this cause in `limits` compares how much the components vary
    # Component 0 is the row's verifier; the others are those of scoring.components, in order.
    largest = max(names[1:], key=lambda name: abs(run.mean_at_end(name) or 0.0))
    index, components = int(largest.rsplit("/", 1)[1]) - 1, run.setting("scoring", "components", default=[])
    weight = float(components[index].get("weight", 1.0)) if index < len(components) else 1.0
    weight *= SMALL_MEAN / max(abs(run.mean_at_end(largest) or 0.0), SMALL_MEAN)
    return Finding(
        0.9,
        f"In {share:.0%} of the pairs of a right and a wrong response to one prompt, the wrong one has no smaller "
        "reward: further components decide.",
        run.evidence("reward/sampled", -1) + tuple(e for name in names for e in run.evidence(name, -1)),
        f"--set scoring.components.{index}.weight={weight:.2g}",
    )


@cause(
    "choose prompts that are solved sometimes",
    explains="too_hard too_easy learning_rate_low wrong_references false_negatives",
)
def starvation(run: RunFacts) -> Finding | None:
    """Batches are not filled: few groups are left after selection, or whole updates are skipped.

    Dynamic sampling throws away groups with equal rewards and samples others in their place, up to a limit. If most
    prompts are too hard or too easy, the limit comes first, and an update has a few groups instead of a batch.
    """
    batch_groups = run.setting(run.section, "prompts_per_step")
    trained, sampled = run.mean_at_end("groups/trained"), run.mean_at_end("groups/sampled")
    if not batch_groups or trained is None or sampled is None or trained >= batch_groups / 2:
        return None
    if (run.share_right(at_end=True) or 0.0) >= 0.9:
        return None  # few groups are left because the task is learned
    skipped = run.mean_at_end("update/skipped") or 0.0
    note = f", and {skipped:.0%} of the last updates were skipped" if skipped else ""
    return Finding(
        1 - trained / batch_groups,
        f"The last steps trained on {trained:.0f} of {batch_groups} groups although {sampled:.0f} were sampled{note}.",
        run.evidence("groups/trained"),
        f"--set {run.section}.select.max_refills=8"
        if run.setting(run.section, "select", "max_refills") == 0
        else "choose prompts that are solved sometimes, by `verizero rate`, or easier data",
    )


@cause(
    "use harder prompts, and leave out those that are always solved",
    explains="learning_rate_low prompts_repeat entropy_collapse",
    needs="groups/sampled",
)
def too_easy(run: RunFacts) -> Finding | None:
    """Nearly every group is all right from the start, so that nothing is left to learn.

    Prompts that the policy solves always teach it nothing, and cost as much as others. A run that ends with all groups
    right has learned its task if it solves held-out prompts as well; if not, its training prompts are the easier ones.
    """
    at_start, at_end = (run.share("groups/all_right", "groups/sampled", at_end=is_end) for is_end in (False, True))
    right, most = run.share_right(), 0.6
    if at_start is None or at_end is None or right is None or right < 0.75 or at_end < most:
        return None
    if at_start < most and not run.training_is_ahead(0.1):
        return None
    return Finding(
        at_end,
        f"{right:.0%} of the first responses are right, and in {at_end:.0%} of the last groups every response is: "
        "these prompts teach nothing any more.",
        run.evidence("groups/all_right"),
        "--set rl.select.keep=informative skips such groups; harder prompts are better",
        level="problem" if at_start >= most else "warning",
    )
