"""One component of the reward is so much larger than the others that the policy learns it alone."""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.run_facts import RunFacts, by_group

EXPLAINS = frozenset({"length_drift"})
MIN_RATIO = 4.0
SMALL_MEAN = 0.1
"""The mean of a further component that a verifier of 0 and 1 still decides over."""
MIN_PAIRS, MIN_MISRANKED = 20, 0.05
"""Pairs of a right and a wrong response of one group; the share of them that the reward may put in the wrong order."""


def look(run: RunFacts) -> Finding | None:
    """Find further components that are far larger than the verifier's part, and rank wrong responses first."""
    if finding := _by_spread(run):
        return finding
    names = sorted({name for _, row in run.steps for name in row.metrics if name.startswith("reward/component/")})
    reward, verdict_part = run.mean_at_end("reward/sampled"), run.mean_at_end(names[0]) if names else None
    if (
        len(names) < 2
        or reward is None
        or verdict_part is None
        or abs(reward) < MIN_RATIO * max(abs(verdict_part), 0.05)
    ):
        return None
    if (share := _misranked(run)) < MIN_MISRANKED:
        return None
    return Finding(
        "reward_scales",
        "problem",
        min(1.0, abs(reward) / (2 * MIN_RATIO * max(abs(verdict_part), 0.05))),
        f"The whole reward is {reward:.2f} and the verifier's part of it {verdict_part:.2f}: the other components "
        f"decide. In {share:.0%} of the pairs of a right and a wrong response to one prompt, the wrong one has no "
        "smaller reward.",
        run.evidence("reward/sampled", -1) + tuple(e for name in names for e in run.evidence(name, -1)),
        _remedy(run, {name: run.mean_at_end(name) or 0.0 for name in names[1:]}),
        EXPLAINS,
    )


def _by_spread(run: RunFacts) -> Finding | None:
    """Find that another component varies far more than the one that says what is right."""
    verdict, others = run.mean_at_start("reward/verdict_std"), run.mean_at_start("reward/others_std")
    if not verdict or others is None or others < MIN_RATIO * verdict:
        return None
    return Finding(
        "reward_scales",
        "problem",
        min(1.0, 0.6 + others / (100 * verdict)),
        f"A component of the reward has a standard deviation of {others:.2g}, and the one that says what is right of "
        f"{verdict:.2g}: the first decides.",
        run.evidence("reward/others_std") + run.evidence("reward/verdict_std") + run.evidence("correct/sampled"),
        "bring all components to one scale",
        EXPLAINS | {"wrong_references", "false_positives"},
    )


def _misranked(run: RunFacts) -> float:
    """Return the share of pairs of one group in which a wrong response has at least the reward of a right one.

    With few pairs: 1 if the other components differ by more than a right answer is worth, else 0.
    """
    pairs = [
        right.row.reward <= wrong.row.reward
        for group in by_group(run.samples)
        for right in group
        for wrong in group
        if right.row.score >= 1 > wrong.row.score and right.row.reward is not None and wrong.row.reward is not None
    ]
    if len(pairs) >= MIN_PAIRS:
        return sum(pairs) / len(pairs)
    others = [s.row.reward - s.row.score for s in run.samples if s.row.reward is not None]
    return float(bool(others) and max(others) - min(others) > 1)


def _remedy(run: RunFacts, last_means: dict[str, float]) -> str:
    """Return a weight of the largest further component at which its mean is a tenth of what a verdict can give."""
    name = max(last_means, key=lambda n: abs(last_means[n]))
    # Component 0 is the row's verifier; the others are those of scoring.components, in order.
    index = int(name.rsplit("/", 1)[1]) - 1
    components = run.setting("scoring", "components", default=[])
    weight = float(components[index].get("weight", 1.0)) if index < len(components) else 1.0
    return f"--set scoring.components.{index}.weight={SMALL_MEAN * weight / max(abs(last_means[name]), SMALL_MEAN):.2g}"
