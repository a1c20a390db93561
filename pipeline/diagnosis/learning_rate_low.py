"""The policy does not move: after many updates it is still the one that it began with.

The gradient is not zero and groups do tell right from wrong, but the updates are too small to change a response.
Learning rates of published recipes are for large models and thousands of steps; a warm-up that is longer than the run
has the same effect. Without a distance to the reference, the sum of the rates says how far a weight can have moved;
where the model's size is known, a rate far below those of such models says more than numbers that wander by chance.
"""

from __future__ import annotations

import math

from verizero.pipeline.config.rates import learning_rate
from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.run_facts import RunFacts

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
LENGTH = "length/mean"
MIN_FACTOR, MAX_FACTOR = 3.0, 300.0
"""Factors by which the remedy raises the rate."""


def look(run: RunFacts) -> Finding | None:
    """Find a policy that stays at its reference although the gradient and the groups have a signal."""
    points = run.series("kl/k1")
    if not points:
        return _by_the_rates(run)
    gradient, kl_coef = run.mean_at_end("grad_norm"), run.mean_at_end("kl/coef") or 0.0
    without_signal = run.mean_at_end("groups/without_signal")
    if (
        len(points) < 10
        or not gradient
        or kl_coef >= 0.5
        or (without_signal is not None and without_signal > MAX_WITHOUT_SIGNAL)
    ):
        return None
    distance = max(abs(p.value) for p in points)
    rates = [p.value for p in run.series("learning_rate")]
    if distance >= MAX_DISTANCE or not rates or run.has_learned:
        return None
    return Finding(
        "learning_rate_low",
        "problem",
        1 - distance / MAX_DISTANCE,
        f"After {len(points)} steps the policy is within {distance:.1e} nats a token of its reference: with a learning "
        f"rate of at most {max(rates):.1e} it hardly moves.",
        run.evidence("kl/k1") + run.evidence("learning_rate", -1),
        _remedy(run, max(rates)),
    )


def _by_the_rates(run: RunFacts) -> Finding | None:
    """Find rates whose sum is too small to move a weight, in a run that logs no distance and changes nothing.

    Adam moves no weight by more than the rate in a step, so that their sum is the most that a weight can have moved.
    """
    rates = [p.value for p in run.series("learning_rate")]
    without_signal = run.mean_at_end("groups/without_signal")
    if (
        len(rates) < 10
        or not run.mean_at_end("grad_norm")
        or (without_signal is not None and without_signal > MAX_WITHOUT_SIGNAL)
        or sum(rates) > MAX_SUM_OF_RATES
    ):
        return None
    usual = learning_rate("rewards", run.info["parameters"]) if run.info.get("parameters") else 0.0
    is_far_below = max(rates) < FAR_BELOW * usual
    if run.has_learned or any(_has_changed(run, name, is_far_below) for name in ("reward/sampled", "entropy", LENGTH)):
        return None
    return Finding(
        "learning_rate_low",
        "problem",
        0.8,
        f"In {len(rates)} steps neither rewards nor entropy have changed by much, and the learning rates, at most "
        f"{max(rates):.1e}, sum to {sum(rates):.1e}: no weight can have moved by more."
        + (f" Models of this size are usually trained at {usual:.0e}." if is_far_below else ""),
        run.evidence("learning_rate") + run.evidence("reward/sampled") + run.evidence("entropy"),
        _remedy(run, max(rates)),
    )


def _has_changed(run: RunFacts, name: str, is_far_below: bool) -> bool:
    """Return True if a number has changed by more than chance, and also by much where the rate hardly lets it move."""
    start = run.mean_at_start(name)
    least = LARGE_CHANGE * abs(start) if is_far_below and start is not None else 0.0
    return abs(run.change(name)) >= MIN_CHANGE and abs(run.gain(name)) >= least


def _remedy(run: RunFacts, highest: float) -> str:
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
