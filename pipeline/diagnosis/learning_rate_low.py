"""The policy does not move: after many updates it is still the one that it began with.

The gradient is not zero and groups do tell right from wrong, but the updates are too small to change a response.
Learning rates of published recipes are for large models and thousands of steps; a warm-up that is longer than the run
has the same effect.
"""

from __future__ import annotations

import math

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.reading import Reading

STILL = 2e-3
"""Nats a token between policy and reference. A policy that learns is past this within a few updates."""
EARLY_SHARE = 0.5
WANTED = 0.03
"""Nats a token that a run of some dozens of steps usually moves."""
LEAST, MOST = 3.0, 300.0
"""Factors by which the remedy raises the rate."""


def look(run: Reading) -> Finding | None:
    """Find a policy that stays at its reference although the gradient and the groups have a signal."""
    points = run.series("kl/k1")
    gradient, kl_coef = run.late("grad_norm"), run.late("kl/coef") or 0.0
    silent = run.late("groups/without_signal")
    if len(points) < 10 or not gradient or kl_coef >= 0.5 or (silent is not None and silent > EARLY_SHARE):
        return None
    moved = max(abs(p.value) for p in points)
    rates = [p.value for p in run.series("learning_rate")]
    if moved >= STILL or not rates or run.has_learned:
        return None
    return Finding(
        "learning_rate_low",
        "problem",
        1 - moved / STILL,
        f"After {len(points)} steps the policy is within {moved:.1e} nats a token of its reference: with a learning "
        f"rate of at most {max(rates):.1e} it hardly moves.",
        run.shown("kl/k1") + run.shown("learning_rate", -1),
        _remedy(run, max(rates)),
    )


def _remedy(run: Reading, highest: float) -> str:
    """Return a shorter warm-up where it never ended, else a larger rate.

    The distance grows with the square of the rate while it is small, which tells the rate that would reach `WANTED`. It
    is read off k3, which is never negative: k1 of so small a distance is noise.
    """
    moved = max((p.value for p in run.series("kl/k3")), default=0.0)
    optimizer = f"{run.section}.optimizer"
    wanted = float(run.setting(run.section, "optimizer", "learning_rate", default=highest))
    if highest < 0.1 * wanted:
        return f"--set {optimizer}.warmup_steps={len(run.steps) // 10}"
    factor = min(MOST, max(LEAST, math.sqrt(WANTED / max(moved, 1e-12))))
    return f"--set {optimizer}.learning_rate={factor * wanted:.0e}"
