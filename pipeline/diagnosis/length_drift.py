"""Responses become longer and longer, or shorter and shorter, because the reward pays for length.

A component that counts tokens, or a penalty for them, is easier to learn than the task. Responses that grow because the
policy thinks longer and is right more often are no fault.
"""

from __future__ import annotations

from statistics import linear_regression

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.reading import Reading

EXPLAINS = frozenset({"reward_scales"})
LONGER, SHORTER = 1.5, 0.92
GAIN, LOSS = 0.05, 0.02
"""Change of the share of right responses: more right ones excuse longer responses, as few wrong ones excuse shorter."""
PAID, EARNED = 0.5, 0.2
"""Shares of the range of the rewards: a mean penalty for length, and what components pay for the drift."""
MOST_PAID = 0.05
"""Weight of a component next to a verdict of 0 to 1: it may decide between right responses, and no more."""


def look(run: Reading) -> Finding | None:
    """Find responses that grow by half and are not right more often, or that a penalty makes shorter and wrong."""
    early, late = run.early("length/mean"), run.late("length/mean")
    if not early or late is None:
        return None
    pays = bool(run.series("reward/length_penalty"))
    if late < LONGER * early and not (pays and late < SHORTER * early):
        return None
    first, last = run.correct(), run.correct(late=True)
    better = first is not None and last is not None and last > first + (GAIN if late > early else -LOSS)
    if (run.has_learned or better) and not _is_paid(run, late - early):
        return None
    return Finding(
        "length_drift",
        "problem",
        min(1.0, 0.6 + abs(late / early - 1)),
        f"The mean response goes from {early:.1f} to {late:.1f} tokens"
        + (" under a penalty for length." if pays else "."),
        run.shown("length/mean", 0, 4, -1) + run.shown("reward/length_penalty", -1),
        _cheaper(run),
        EXPLAINS,
    )


def _is_paid(run: Reading, drift: float) -> bool:
    """Return True if the reward pays for length itself: by a large penalty, or by components that grow with it.

    drift: the tokens by which the mean response has changed.
    """
    if (run.late("reward/length_penalty") or 0.0) >= PAID * run.reward_range:
        return True
    rows = [s.row for s in run.samples if s.row.reward is not None]
    lengths = [float(row.length) for row in rows]
    if len(set(lengths)) < 2:
        return False
    slope = linear_regression(lengths, [row.reward - row.score for row in rows if row.reward is not None]).slope
    return slope * drift >= EARNED * run.reward_range


def _cheaper(run: Reading) -> str:
    """Return a tenth of what the recipe pays for length, or less, or what to read where the recipe does not name it."""
    penalty = run.setting(run.section, "algorithm", "group_length_penalty")
    if penalty:
        return f"--set {run.section}.algorithm.group_length_penalty={penalty / 10:g}"
    components = run.setting("scoring", "components", default=[])
    if len(components) == 1:
        weight = min(MOST_PAID, float(components[0].get("weight", 1.0)) / 10)
        return f"--set scoring.components.0.weight={weight:g}"
    return "read long responses in rollouts.jsonl, and lower the weight of what pays for length"
