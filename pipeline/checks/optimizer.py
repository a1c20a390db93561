"""Causes in the updates: learning rates, gradients, clips, ratios, the critic, entropy, the KL and its reference."""

from __future__ import annotations

import math
from functools import partial
from statistics import fmean

from verizero.pipeline.algorithms.base import chosen, load_algorithm
from verizero.pipeline.checks import limits  # noqa: F401  (has rows of causes that get more rules here)
from verizero.pipeline.checks.cause import also, cause
from verizero.pipeline.checks.finding import Finding
from verizero.pipeline.checks.run_facts import NUM_COMPARED, RunFacts
from verizero.pipeline.config.rates import learning_rate
from verizero.pipeline.errors import ConfigError

MIN_CLIPPED, MIN_CLIPPED_OF_SEQUENCES = 0.08, 0.5
MANY_UPDATES, NO_CLIP, LEAST_NORM = 3, 1.0, 1e-6
"""Updates on one batch; a distance of the ratio from 1 that clips little; a norm below which Adam's eps is larger."""
GRPO = {"name": "grpo"}
MAX_DISTANCE = 2e-3
"""Nats a token between policy and reference. A policy that learns is past this within a few updates."""
MAX_WITHOUT_SIGNAL = 0.5
MAX_SUM_OF_RATES, MIN_CHANGE = 1e-3, 3.0
"""Sum of the rates of all steps, and standard errors of a change, where no distance to the reference is logged."""
FAR_BELOW, LARGE_CHANGE = 0.1, 0.15
"""Share of the usual rate for the model's size below which no run of dozens of steps learns, and a share of entropy or
length by which those change of a policy that moves all the same."""
USUAL_DISTANCE = 0.03
"""Nats a token that a run of some dozens of steps usually moves."""
MIN_FACTOR, MAX_FACTOR = 3.0, 300.0
"""Factors by which the remedy raises the rate."""
MIN_STEPS, MIN_CUT_MORE, ENTROPY_FACTOR, MIN_FALL, MAX_CHANGE = 10, 0.3, 2.0, 0.05, 0.25
"""Limits of a rate that is too high: steps and, if no distance is logged, more responses cut at the end than at first,
change of the entropy; fall of the reward, as a share of the range of the rewards; share by which entropy and length
change at most where a fall is none of the policy."""


@cause(
    "use the clip range of your algorithm's publication: 0.2 for ratios of tokens",
    explains="learning_rate_low",
    needs="clip_fraction/high",
)
def clip_stops_learning(run: RunFacts) -> Finding | None:
    """The clip cuts off a good part of the tokens, so that most of each update is lost.

    Clip ranges belong to a kind of ratio. Those of sequences (GSPO) are a thousand times smaller than those of tokens,
    and either is wrong for the other. GSPO clips about 15% of the tokens and learns well (arXiv:2507.18071, section
    5.2): whole responses are clipped there, not the tokens of each that changed most.
    """
    clipped = (run.mean_at_end("clip_fraction/high") or 0.0) + (run.mean_at_end("clip_fraction/low") or 0.0)
    name, params = chosen(run.setting(run.section, "algorithm", default=GRPO))
    try:
        _, parts = load_algorithm(name, params)
    except ConfigError:  # another trainer takes a value that a recipe does not
        _, parts = load_algorithm(name)
    of_sequences = parts.ratio_entry.of in ("mean", "sum")
    if clipped < (MIN_CLIPPED_OF_SEQUENCES if of_sequences else MIN_CLIPPED):
        return None
    return Finding(
        min(1.0, 0.6 + clipped),
        f"{clipped:.0%} of the tokens are clipped and have no gradient; usual are less than "
        f"{'30%' if of_sequences else '2%'}.",
        run.evidence("clip_fraction/high") + run.evidence("clip_fraction/low", -1) + run.evidence("ratio/p99", -1),
        f"leave clip_low and clip_high out of {run.section}.algorithm, which then has those of the publication; or "
        f"--set {run.section}.algorithm.num_epochs=1",
    )


@cause(
    "raise the critic's learning rate to ten times the policy's, or leave the critic out",
    explains="learning_rate_low advantages_vanish",
    needs="critic/explained_variance",
)
def critic_not_learning(run: RunFacts) -> Finding | None:
    """The critic predicts the returns no better than a constant would, from the first step to the last.

    Advantages with a critic are returns less its values. Values that are noise, or always the same, add noise to each
    of them. A critic's learning rate is five to ten times the policy's: far below that it stays what it was at the
    start, and far above it never settles.
    """
    values = [p.value for p in run.series("critic/explained_variance")]
    if len(values) < 10:
        return None
    best = max(fmean(values[i : i + NUM_COMPARED]) for i in range(len(values) - NUM_COMPARED + 1))
    if best >= 0.01:
        return None
    critic_rate, policy_rate = run.mean_at_end("critic/learning_rate") or 0.0, run.mean_at_end("learning_rate") or 0.0
    # A critic that moves a lot and is worse than a constant takes steps that are too large.
    better_rate = critic_rate / 10 if fmean(values[NUM_COMPARED:]) < -0.01 else 10 * max(critic_rate, policy_rate)
    return Finding(
        0.8,
        f"The critic never explained more than {max(0.0, best):.1%} of the variance of the returns over "
        f"{NUM_COMPARED} steps.",
        run.evidence("critic/explained_variance") + run.evidence("critic/learning_rate", -1),
        f"--set rl.algorithm.critic_learning_rate={better_rate:.0e}",
        level="warning",
    )


@cause("lower the learning rate, or add a small entropy bonus", needs="entropy")
def entropy_collapse(run: RunFacts) -> Finding | None:
    """The policy has become sure of itself while its rewards fell: it samples little and learns nothing new.

    Entropy falls in every run that learns. It is a fault where it falls without gain: by an entropy term of the wrong
    sign, by updates that are too large, or by a reward that any response gets. A term of the wrong sign is in the
    recipe, so a small gain does not excuse it.
    """
    first_entropy, last_entropy = run.mean_at_start("entropy"), run.mean_at_end("entropy")
    first_reward, last_reward = run.mean_at_start("reward/sampled"), run.mean_at_end("reward/sampled")
    coef = run.setting(run.section, "algorithm", "entropy_coef", default=0.0)
    # The share of the first entropy that is left. Without evaluations, training rewards wander more.
    max_left, max_gain = (0.85, 0.2) if coef < 0 else (0.65 if run.evaluations else 0.5, 0.02)
    if not first_entropy or last_entropy is None or first_reward is None or last_reward is None:
        return None
    least = max_gain * run.reward_range
    if last_entropy > max_left * first_entropy or last_reward > first_reward + least:
        return None
    if coef >= 0 and (run.has_learned or run.gain("reward/sampled") > least):
        return None
    field = f"{run.section}.algorithm.entropy_coef"
    return Finding(
        max(0.3, min(1.0, 0.6 + first_reward - last_reward)),
        f"The entropy falls from {first_entropy:.3f} to {last_entropy:.3f} nats a token, and the reward goes from "
        f"{first_reward:.2f} to {last_reward:.2f}."
        + (f" The entropy term has the coefficient {coef:g}, which rewards being sure." if coef < 0 else ""),
        run.evidence("entropy") + run.evidence("reward/sampled"),
        f"--set {field}={abs(coef) / 100:g}" if coef < 0 else f"--set {field}=0.003, or a smaller learning rate",
        # A policy that is sure agrees with itself on wrong answers too.
        frozenset({"wrong_references", "too_easy", "length_cap"} if coef < 0 else ()),
    )


@cause("lower the coefficient of the KL term, or leave the term out", needs="kl/coef")
def kl_too_strong(run: RunFacts) -> Finding | None:
    """The KL term costs as much as the reward brings, so the policy stays where the reference is."""
    coef, kl = run.mean_at_end("kl/coef"), run.mean_at_end("reward/kl_per_response") or 0.0
    reward_std = run.mean_at_end("reward/std")
    if not coef or not reward_std:
        return None
    cost = coef * kl / reward_std
    if coef < 1 and cost < 0.5:
        return None
    of_reward = f", and the KL takes {cost:.0%} of a standard deviation of the reward."
    return Finding(
        min(1.0, max(cost, 0.6)),
        f"The KL coefficient is {coef:g}" + (of_reward if kl else "; usual ones are 0 to 0.1."),
        run.evidence("kl/coef", -1) + run.evidence("kl/k1"),
        f"--set {run.section}.algorithm.kl_coef={coef / 100:g}",
    )


@cause(
    "lower the learning rate by a factor of ten",
    explains="entropy_collapse length_cap length_drift too_hard wrong_references false_negatives",
)
def learning_rate_high(run: RunFacts) -> Finding | None:
    """The first updates throw the policy far away, and the reward falls.

    An update that is too large makes the policy worse everywhere at once. Rewards drop within a few steps, and the
    distance to the reference grows to tenths of a nat a token, which careful runs never reach. A later update can do
    the same: from that step on the reward is a fraction of what it was.
    """
    rewards, last_reward = run.series("reward/sampled"), run.mean_at_end("reward/sampled")
    distance = run.mean_at_start("kl/k1")
    if distance is None or last_reward is None or not rewards or distance < 0.1:
        return None
    if last_reward > rewards[0].value - MIN_FALL * run.reward_range:
        return None
    return Finding(
        min(1.0, 0.6 + distance),
        f"Within the first steps the policy is {distance:.2f} nats a token from its reference, and the reward "
        f"falls from {rewards[0].value:.2f} to {last_reward:.2f}.",
        run.evidence("kl/k1", 0, 4, -1) + run.evidence("reward/sampled"),
        _slower(run),
    )


def sudden_fall(run: RunFacts, of_grader: bool) -> Finding | None:
    """Find a reward that falls by half in one step and stays there: the grader's, if the responses are as before."""
    points, names = run.series("reward/sampled"), ("entropy", "length/mean", "truncated")
    values, rows = [p.value for p in points], [row.metrics for _, row in run.steps if "reward/sampled" in row.metrics]
    for i in range(NUM_COMPARED, len(points) - NUM_COMPARED + 1):
        before, after = slice(i - NUM_COMPARED, i), slice(i, i + NUM_COMPARED)
        first, last = fmean(values[before]), fmean(values[i:])
        least = max(abs(first) / 2, 2 * MIN_FALL * run.reward_range)
        if first - last < least or min(values[before]) - max(values[i:]) < (first - last) / 2:
            continue
        means = [[fmean(m.get(n, 0.0) for m in rows[part]) for part in (before, after)] for n in names]
        is_alike = all(abs(b - a) <= MAX_CHANGE * abs(b) for b, a in means)
        if is_alike is not of_grader:
            return None
        sentence = f"At step {points[i].step} the reward falls from {first:.2f} to {last:.2f} and stays there"
        return Finding(
            0.9,
            sentence
            + (", of responses as before: the grader fails." if of_grader else ": an update broke the policy."),
            run.evidence("reward/sampled", i - 1, i, -1) + sum((run.evidence(n, i - 1, i) for n in names), ()),
            "look at what the grader says since then" if of_grader else _slower(run),
            frozenset({"learning_rate_low", "entropy_collapse", "advantages_vanish", "end_token_missing"}),
        )
    return None


also("learning_rate_high")(partial(sudden_fall, of_grader=False))
also("infrastructure_zeros")(partial(sudden_fall, of_grader=True))


@also("learning_rate_high")
def high_by_the_rewards(run: RunFacts) -> Finding | None:
    """Find rewards that fall by half, and responses that no longer end or are no longer sure, without a distance."""
    rewards, cut, entropy = (run.series(name) for name in ("reward/sampled", "truncated", "entropy"))
    last_reward = run.mean_at_end("reward/sampled")
    if run.series("kl/k1") or last_reward is None or len(rewards) < MIN_STEPS:
        return None
    first_reward = max(p.value for p in rewards[:2])
    fall = first_reward - last_reward
    cut_more = cut[-1].value - cut[0].value if cut else 0.0
    factor = entropy[-1].value / max(entropy[0].value, 1e-6) if entropy else 1.0
    if fall < max(MIN_FALL * run.reward_range, first_reward / 2) or (
        cut_more < MIN_CUT_MORE and 1 / ENTROPY_FACTOR < factor < ENTROPY_FACTOR
    ):
        return None
    rate = max((p.value for p in run.series("learning_rate")), default=0.0)
    what = (
        f"{cut[-1].value:.0%} of the responses no longer end."
        if cut_more >= MIN_CUT_MORE
        else f"the entropy changes by a factor of {factor:.1f}."
    )
    return Finding(
        0.9,
        f"The reward falls from {first_reward:.2f} to {last_reward:.2f} under a learning rate of {rate:.1e}, and "
        f"{what}",
        run.evidence("reward/sampled", 0, 4, -1) + run.evidence("truncated") + run.evidence("entropy"),
        _slower(run),
        frozenset({"end_token_missing", "learning_rate_low"}),
    )


def _slower(run: RunFacts) -> str:
    """Return a tenth of the rate, if it is known."""
    highest = max((p.value for p in run.series("learning_rate")), default=0.0)
    rate = float(run.setting(run.section, "optimizer", "learning_rate", default=highest))
    return f"--set {run.section}.optimizer.learning_rate={rate / 10:.0e}" if rate else "divide the learning rate by ten"


@cause("raise the learning rate by a factor of ten, or shorten the warm-up", needs="learning_rate")
def learning_rate_low(run: RunFacts) -> Finding | None:
    """The policy does not move: after many updates it is still the one that it began with.

    The gradient is not zero and groups do tell right from wrong, but the updates are too small to change a response.
    Learning rates of published recipes are for large models and thousands of steps; a warm-up that is longer than the
    run has the same effect. Without a distance to the reference, the sum of the rates says how far a weight can have
    moved; where the model's size is known, a rate far below those of such models says more than numbers that wander by
    chance.
    """
    points, rates = run.series("kl/k1"), [p.value for p in run.series("learning_rate")]
    if len(points) < 10 or not _has_signal(run) or (run.mean_at_end("kl/coef") or 0.0) >= 0.5:
        return None
    distance = max(abs(p.value) for p in points)
    if distance >= MAX_DISTANCE or not rates or run.has_learned:
        return None
    return Finding(
        1 - distance / MAX_DISTANCE,
        f"After {len(points)} steps the policy is within {distance:.1e} nats a token of its reference: with a learning "
        f"rate of at most {max(rates):.1e} it hardly moves.",
        run.evidence("kl/k1") + run.evidence("learning_rate", -1),
        _faster(run, max(rates)),
    )


@also("ratios_explode")
def unclipped_by_options(run: RunFacts) -> Finding | None:
    """Find several updates on each batch under a clip that clips nothing, in a run that has not learned."""
    algorithm = run.setting(run.section, "algorithm", default={})
    updates, clip = algorithm.get("num_epochs") or 1, algorithm.get("clip_low") or 0.0
    if updates < MANY_UPDATES or clip < NO_CLIP or run.has_learned:
        return None
    return Finding(
        0.9,
        f"Each batch trains {updates:g} times, and the clip of {clip:g} holds no ratio.",
        run.evidence("reward/sampled") + run.evidence("entropy"),
        f"--set {run.section}.algorithm.num_epochs=1 --set {run.section}.algorithm.clip_low=0.2",
        frozenset({"too_hard", "infrastructure_zeros", "wrong_references", "prompts_repeat"}),
    )


@also("learning_rate_low")
def low_by_the_norm(run: RunFacts) -> Finding | None:
    """Find a bound of the gradient's norm that leaves next to nothing of it."""
    most = run.setting(run.section, "optimizer", "max_grad_norm")
    if not most or most >= LEAST_NORM or run.has_learned:
        return None
    return Finding(
        0.9,
        f"Gradients are scaled to a norm of at most {most:g}, which Adam's eps of 1e-8 makes no step of.",
        run.evidence("grad_norm") + run.evidence("reward/sampled"),
        f"--set {run.section}.optimizer.max_grad_norm=1",
    )


@also("learning_rate_low")
def low_by_the_rates(run: RunFacts) -> Finding | None:
    """Find rates whose sum is too small to move a weight, in a run that logs no distance and changes nothing.

    Adam moves no weight by more than the rate in a step, so that their sum is the most that a weight can have moved.
    """
    rates = [p.value for p in run.series("learning_rate")]
    if run.series("kl/k1") or len(rates) < 10 or not _has_signal(run) or sum(rates) > MAX_SUM_OF_RATES:
        return None
    usual = learning_rate("rewards", run.info["parameters"]) if run.info.get("parameters") else 0.0
    is_far_below = max(rates) < FAR_BELOW * usual
    names = ("reward/sampled", "entropy", "length/mean")
    if run.has_learned or any(_has_changed(run, name, is_far_below) for name in names):
        return None
    return Finding(
        0.8,
        f"In {len(rates)} steps neither rewards nor entropy have changed by much, and the learning rates, at most "
        f"{max(rates):.1e}, sum to {sum(rates):.1e}: no weight can have moved by more."
        + (f" Models of this size are usually trained at {usual:.0e}." if is_far_below else ""),
        run.evidence("learning_rate") + run.evidence("reward/sampled") + run.evidence("entropy"),
        _faster(run, max(rates)),
    )


def _has_signal(run: RunFacts) -> bool:
    """Return True if there is a gradient, and groups tell right from wrong."""
    without_signal = run.mean_at_end("groups/without_signal")
    return bool(run.mean_at_end("grad_norm")) and (without_signal is None or without_signal <= MAX_WITHOUT_SIGNAL)


def _has_changed(run: RunFacts, name: str, is_far_below: bool) -> bool:
    """Return True if a number has changed by more than chance, and also by much where the rate hardly lets it move."""
    start = run.mean_at_start(name)
    least = LARGE_CHANGE * abs(start) if is_far_below and start is not None else 0.0
    return abs(run.change(name)) >= MIN_CHANGE and abs(run.gain(name)) >= least


def _faster(run: RunFacts, highest: float) -> str:
    """Return a shorter warm-up if the run ended within it, else a larger rate.

    While it is small, the distance grows with the square of the rate: that gives the rate for `USUAL_DISTANCE`. The
    distance is k3, which is never negative: a k1 this small is noise.
    """
    distance = max((p.value for p in run.series("kl/k3")), default=0.0)
    optimizer = f"{run.section}.optimizer"
    rate = float(run.setting(run.section, "optimizer", "learning_rate", default=highest))
    if highest < 0.1 * rate:
        return f"--set {optimizer}.warmup_steps={len(run.steps) // 10}"
    factor = min(MAX_FACTOR, max(MIN_FACTOR, math.sqrt(USUAL_DISTANCE / max(distance, 1e-12))))
    return f"--set {optimizer}.learning_rate={factor * rate:.0e}"
