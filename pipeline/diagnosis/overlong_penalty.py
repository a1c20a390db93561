"""The penalty for long responses takes more than right answers bring, so the policy learns to be short and wrong."""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.run_facts import RunFacts

EXPLAINS = frozenset({"length_drift"})
MIN_SHARE_TAKEN = 0.25


def look(run: RunFacts) -> Finding | None:
    """Find a mean reward in training that lies far below that of the verdicts, under such a penalty."""
    factor = run.setting(run.section, "algorithm", "overlong_factor")
    buffer = run.setting(run.section, "algorithm", "overlong_buffer")
    trained, sampled = run.mean_at_start("reward/mean"), run.mean_at_start("reward/sampled")
    if (factor is None and buffer is None) or trained is None or sampled is None:
        return None
    taken = sampled - trained
    if taken < MIN_SHARE_TAKEN * max(sampled, 0.1):
        return None
    return Finding(
        "overlong_penalty",
        "problem",
        min(1.0, 0.6 + taken),
        f"Verdicts give {sampled:.2f} on average and the penalty for length takes {taken:.2f} of it.",
        run.evidence("reward/mean") + run.evidence("reward/sampled"),
        f"--set {run.section}.algorithm.overlong_buffer=0.2 --set {run.section}.algorithm.overlong_factor=1",
        EXPLAINS,
    )
