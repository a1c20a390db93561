"""The engine samples with weights that are not the trainer's, more so with every update.

Engine and trainer agreed at the beginning. Since then the trainer has moved and the engine has not followed: the
weights were not sent, were not loaded, or only sometimes. Every reward is then one of an older policy.
"""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.run_facts import RunFacts

EXPLAINS = frozenset(
    {
        "engine_mismatch",
        "entropy_collapse",
        "sampling_differs",
        "learning_rate_high",
        "gradients_always_clipped",
        "learning_rate_low",
    }
)
MIN_K3, MIN_DIFFERENCE, MIN_GROWTH = 0.01, 0.05, 4.0


def look(run: RunFacts) -> Finding | None:
    """Find a mismatch of engine and trainer that was near zero at the first step and has grown since."""
    # Trainers that log no k3 log the mean of |log p - log q|, which is the larger of the two while both are small.
    name, least = ("mismatch/k3", MIN_K3) if run.series("mismatch/k3") else ("mismatch/abs", MIN_DIFFERENCE)
    points, last_k3 = run.series(name), run.mean_at_end(name)
    if last_k3 is None or last_k3 < least or points[0].value * MIN_GROWTH > last_k3:
        return None
    return Finding(
        "stale_engine_weights",
        "problem",
        min(1.0, 0.7 + last_k3),
        f"Engine and trainer agreed at the first step ({points[0].value:.1e} nats a token) and differ by {last_k3:.2f} "
        "at the last: the engine does not get the trainer's weights.",
        run.evidence(name, 0, 4, -1),
        "run `verizero doctor`; for servers of vLLM compare rollout.vllm.transfer with docs/engines.md",
        EXPLAINS,
    )
