"""The reference is still the policy of the start, and its KL term pulls harder the more the policy learns."""

from __future__ import annotations

from itertools import pairwise

from verizero.pipeline.diagnosis.finding import Evidence, Finding
from verizero.pipeline.diagnosis.run_facts import METRICS, RunFacts

MIN_COEF, MIN_DISTANCE, MEASURABLE_DISTANCE = 0.1, 0.03, 5e-3


def look(run: RunFacts) -> Finding | None:
    """Find a reference of one version, far from the policy, under a coefficient that holds."""
    versions, coef, distance = (
        run.series("reference/version"),
        run.mean_at_end("kl/coef") or 0.0,
        run.mean_at_end("kl/k1"),
    )
    if finding := _not_replaced(run):
        return finding
    if (
        len(versions) < 10
        or distance is None
        or coef < MIN_COEF
        or distance < MIN_DISTANCE
        or versions[0].value != versions[-1].value
    ):
        return None
    return Finding(
        "reference_never_moves",
        "warning",
        min(1.0, 0.5 + coef),
        f"The reference has not moved in {len(versions)} steps; the policy is {distance:.2f} nats a token away, which "
        f"costs {coef * distance:.3f} a token.",
        run.evidence("reference/version") + run.evidence("kl/k1", -1),
        f"--set '{run.section}.reference={{schedule: every_round}}'",
    )


def _not_replaced(run: RunFacts) -> Finding | None:
    """Find a reference whose version changes while the policy stays as far from it as before."""
    distances = {p.step: p for p in run.series("kl/k1")}
    version_changes = [(a.step, b.step) for a, b in pairwise(run.series("reference/version")) if a.value != b.value]
    pairs = [(distances[a], distances[b]) for a, b in version_changes if a in distances and b in distances]
    distance = [(a, b) for a, b in pairs if a.value > MEASURABLE_DISTANCE]
    if len(distance) < 2 or any(b.value < a.value / 2 for a, b in distance):
        return None
    return Finding(
        "reference_never_moves",
        "problem",
        0.9,
        f"The reference got a new version {len(version_changes)} times, and the policy was as far from it after as "
        "before: its weights are not replaced.",
        tuple(
            Evidence(METRICS, b.line, f"step {b.step}: new version, kl/k1={b.value:.3g}", "kl/k1")
            for _, b in distance[:3]
        ),
        "look at what refreshes the reference (pipeline/loop/reference.py), or at the change that was made to it",
    )
