"""Responses are many updates older than the policy that learns from them.

Asynchronous rollouts and rare publishing save time, and each update of lag makes the data less the policy's own.
Small lags are harmless with a clip; large ones hold learning back.
"""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.reading import Reading

EXPLAINS = frozenset({"ratios_explode", "learning_rate_low", "clip_stops_learning"})
OLD = 4.0


def look(run: Reading) -> Finding | None:
    """Find that the weights which sampled are several versions behind."""
    now, then = run.late("policy/version"), run.late("rollout/version")
    if now is None or then is None or now - then < OLD:
        return None
    every = run.setting("rollout", "publish_every", default=1)
    remedy = "--set rollout.publish_every=1" if every > 1 else "--set rollout.max_staleness=1"
    return Finding(
        "policy_lag",
        "problem" if now - then >= 2 * OLD else "warning",
        min(1.0, (now - then) / 10),
        f"The responses of the last steps were sampled by weights that are {now - then:.0f} updates old.",
        run.shown("policy/version", -1) + run.shown("rollout/version", -1),
        remedy,
        EXPLAINS,
    )
