"""The engine draws tokens from another distribution than the recipe says: a top-p, top-k or temperature of its own.

Tokens that the engine never draws have a probability in the trainer. So the mean ratio of the two is below 1, which
no rounding does: the estimates k1 and k3 of their distance then differ (John Schulman, Approximating KL divergence,
2020: k3 - k1 is the mean ratio less 1, which is 0 where both have the same tokens).

A temperature shows elsewhere: the mean of -log prob of sampled tokens, by the trainer, is its entropy only if they
were drawn from the trainer's own distribution. It is smaller where they were drawn colder, and larger where hotter.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.reading import FEW, Reading

EXPLAINS = frozenset({"engine_mismatch", "learning_rate_high", "entropy_collapse", "ratios_explode"})
LARGE, LOST = 0.01, 0.03
EARLY, ALL = 0.15, 0.2
"""Distance of the mean -log prob of sampled tokens from the entropy, as shares of the entropy. Five steps of a small
healthy batch stay within 0.06, thirty within 0.1."""
SURE = 4.0
"""Standard errors: where the entropy is nearly 0, a few rare tokens are a large share of it."""
MOVED = 1.5
"""99th percentile of the ratios above which several updates on one batch have moved the policy: its samples are then of
another policy, whatever the temperature."""


def look(run: Reading) -> Finding | None:
    """Find tokens that the engine never draws, or draws too rarely or too often, from the first steps on."""
    return _cut(run) or _tempered(run)


def _cut(run: Reading) -> Finding | None:
    """Find that the trainer has probability on tokens that the engine never draws."""
    k1, k3 = run.early("mismatch/k1"), run.early("mismatch/k3")
    if k1 is None or k3 is None or k1 < LARGE or k1 - k3 < LOST:
        return None
    return Finding(
        "sampling_differs",
        "problem",
        min(1.0, 0.7 + k1 - k3),
        f"On average {k1 - k3:.0%} of the trainer's probability is on tokens that the engine never draws.",
        run.shown("mismatch/k1") + run.shown("mismatch/k3"),
        "--set rollout.top_p=1 --set rollout.top_k=0, and remove such options from the engine's own configuration",
        EXPLAINS,
    )


def _tempered(run: Reading) -> Finding | None:
    """Find that sampled tokens are surer, or less sure, than the trainer's policy is on average."""
    rows = [row.metrics for _, row in run.steps if "surprise" in row.metrics and "entropy" in row.metrics]
    # Samples of an older policy are not drawn from the trainer's present one, and need not agree with it.
    rows = [m for m in rows if m.get("mismatch/stale", 0.0) < 0.5 and m.get("ratio/p99", 1.0) < MOVED]
    if len(rows) < FEW:
        return None
    if _gap(rows) > 0:
        # Groups that are kept because somebody erred have more rare tokens than others: that is no temperature.
        rows = [m for m in rows if m["groups/trained"] == m["groups/sampled"]]
        if len(rows) < FEW:
            return None
    early, whole = _gap(rows[:FEW]), _gap(rows)
    if early * whole <= 0 or abs(early) < EARLY or abs(whole) < ALL or _errors(rows) < SURE:
        return None
    if whole > 0 and (run.early("mismatch/k3") or 0.0) >= LARGE:
        return None  # an engine that computes other probabilities draws rare tokens too; `engine_mismatch` names it
    asked = run.setting("rollout", "temperature", default=1.0)
    return Finding(
        "sampling_differs",
        "problem",
        min(1.0, 0.7 + abs(whole)),
        f"Sampled tokens are {abs(whole):.0%} {'more' if whole > 0 else 'less'} surprising to the trainer than its "
        f"entropy says: the engine samples {'hotter' if whole > 0 else 'colder'} than the trainer computes.",
        run.shown("surprise") + run.shown("entropy"),
        f"remove the temperature from the engine's own configuration: the recipe asks for {asked:g}",
        EXPLAINS,
    )


def _errors(rows: Sequence[Mapping[str, float]]) -> float:
    """Return the mean distance of the two over the steps, in its standard errors."""
    gaps = [m["surprise"] - m["entropy"] for m in rows]
    return abs(statistics.fmean(gaps)) / max(statistics.stdev(gaps) / math.sqrt(len(gaps)), 1e-9)


def _gap(rows: Sequence[Mapping[str, float]]) -> float:
    """Return by which share of the entropy the mean -log prob of sampled tokens is above it."""
    entropy = sum(m["entropy"] for m in rows)
    return (sum(m["surprise"] for m in rows) - entropy) / max(entropy, 1e-3 * len(rows))
