"""Responses are many updates older than the policy that learns from them.

Asynchronous rollouts and rare publishing save time, and each update of lag makes the data less the policy's own.
Small lags are harmless with a clip; large ones hold learning back.
"""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.run_facts import RunFacts

EXPLAINS = frozenset({"ratios_explode", "learning_rate_low", "clip_stops_learning"})
MIN_LAG = 4.0


def look(run: RunFacts) -> Finding | None:
    """Find that the weights which sampled are several versions behind."""
    policy_version, sampling_version = run.mean_at_end("policy/version"), run.mean_at_end("rollout/version")
    if policy_version is None or sampling_version is None or policy_version - sampling_version < MIN_LAG:
        return None
    publish_every = run.setting("rollout", "publish_every", default=1)
    remedy = "--set rollout.publish_every=1" if publish_every > 1 else "--set rollout.max_staleness=1"
    return Finding(
        "policy_lag",
        "problem" if policy_version - sampling_version >= 2 * MIN_LAG else "warning",
        min(1.0, (policy_version - sampling_version) / 10),
        f"The responses of the last steps were sampled by weights that are {policy_version - sampling_version:.0f} "
        "updates old.",
        run.evidence("policy/version", -1) + run.evidence("rollout/version", -1),
        remedy,
        EXPLAINS,
    )
