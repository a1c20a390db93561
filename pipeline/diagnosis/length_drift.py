"""Responses become longer and longer, or shorter and shorter, because the reward pays for length.

A component that counts tokens, or a penalty for them, is easier to learn than the task. Responses that grow because the
policy thinks longer and is right more often are no fault. A fixed reward for each character or word is found by the
rewards themselves, before responses grow: less so much for each, they have as few values as there are verdicts.
"""

from __future__ import annotations

from statistics import linear_regression

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.length_pay import WORD, length_pay
from verizero.pipeline.diagnosis.run_facts import RunFacts

EXPLAINS = frozenset({"reward_scales"})
LONGER_FACTOR, LONGER_FACTOR_IF_PAID, SHORTER_FACTOR = 1.5, 1.2, 0.92
EXCUSING_GAIN, EXCUSED_LOSS = 0.05, 0.02
"""Change of the share of right responses: more right ones excuse longer responses, as few wrong ones excuse shorter."""
MOST_OF_RISE = 0.6
"""Share of the rise of the reward that the drift explains, where no evaluation tells what was learned."""
LARGE_PENALTY, LARGE_PAY = 0.5, 0.2
"""Shares of the range of the rewards: a mean penalty for length, and what components pay for the drift."""
MAX_WEIGHT = 0.05
"""Weight of a component next to a verdict of 0 to 1: it may decide between right responses, and no more."""


def look(run: RunFacts) -> Finding | None:
    """Find a reward that pays more for length than for all else, or responses that it makes longer or shorter."""
    return _paid_by_the_unit(run) or _drift(run)


def _paid_by_the_unit(run: RunFacts) -> Finding | None:
    """Find a fixed reward for each unit of length, of which a response can have more than of anything else."""
    pay = length_pay(run)
    if pay is None or pay.rate <= 0 or not run.series("length/mean"):
        return None
    # A token has a character or more, and may be a part of a word.
    limit = max(pay.longest, 0 if pay.unit == WORD else run.setting("rollout", "max_response_tokens", default=0))
    most = pay.rate * (limit - pay.mean_length)
    if most <= pay.rest:
        return None
    return Finding(
        "length_drift",
        "problem",
        0.9,
        f"The reward pays {pay.rate:g} for each {pay.unit}. That is {most:.2g} more for a response of the full length "
        f"than for one of the mean length, and all else pays {pay.rest:.2g} at most.",
        run.evidence("reward/sampled") + run.evidence("length/mean"),
        _remedy(run),
        EXPLAINS,
    )


def _drift(run: RunFacts) -> Finding | None:
    """Find responses that grow by half and are not right more often, or that a penalty makes shorter and wrong."""
    first_length, last_length = run.mean_at_start("length/mean"), run.mean_at_end("length/mean")
    if not first_length or last_length is None:
        return None
    is_penalised = bool(run.series("reward/length_penalty"))
    is_paid = _is_paid(run, last_length - first_length)
    longer = LONGER_FACTOR_IF_PAID if is_paid and not run.evaluations else LONGER_FACTOR
    if last_length < longer * first_length and not (is_penalised and last_length < SHORTER_FACTOR * first_length):
        return None
    first_right, last_right = run.share_right(), run.share_right(at_end=True)
    is_better = (
        first_right is not None
        and last_right is not None
        and last_right > first_right + (EXCUSING_GAIN if last_length > first_length else -EXCUSED_LOSS)
    )
    if (run.has_learned or is_better) and not is_paid:
        return None
    return Finding(
        "length_drift",
        "problem",
        min(1.0, 0.6 + abs(last_length / first_length - 1)),
        f"The mean response goes from {first_length:.1f} to {last_length:.1f} tokens"
        + (" under a penalty for length." if is_penalised else "."),
        run.evidence("length/mean", 0, 4, -1) + run.evidence("reward/length_penalty", -1),
        _remedy(run),
        EXPLAINS,
    )


def _is_paid(run: RunFacts, drift: float) -> bool:
    """Return True if the reward pays for length itself: by a large penalty, or by components that grow with it.

    drift: the tokens by which the mean response has changed.
    """
    if (run.mean_at_end("reward/length_penalty") or 0.0) >= LARGE_PENALTY * run.reward_range:
        return True
    rows = [s.row for s in run.samples if s.row.reward is not None]
    lengths = [float(row.length) for row in rows]
    if len(set(lengths)) < 2:
        return False
    slope = linear_regression(lengths, [row.reward - row.score for row in rows if row.reward is not None]).slope
    if slope * drift >= LARGE_PAY * run.reward_range:
        return True
    rise = (run.mean_at_end("reward/sampled") or 0.0) - (run.mean_at_start("reward/sampled") or 0.0)
    return not run.evaluations and drift > 0 and rise > 0 and slope * drift >= MOST_OF_RISE * rise


def _remedy(run: RunFacts) -> str:
    """Return a tenth of what the recipe pays for length, or less, or what to read where the recipe does not name it."""
    penalty = run.setting(run.section, "algorithm", "group_length_penalty")
    if penalty:
        return f"--set {run.section}.algorithm.group_length_penalty={penalty / 10:g}"
    components = run.setting("scoring", "components", default=[])
    if len(components) == 1:
        weight = min(MAX_WEIGHT, float(components[0].get("weight", 1.0)) / 10)
        return f"--set scoring.components.0.weight={weight:g}"
    return "read long responses in rollouts.jsonl, and lower the weight of what pays for length"
