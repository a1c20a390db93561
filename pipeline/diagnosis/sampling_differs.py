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
from verizero.pipeline.diagnosis.run_facts import NUM_COMPARED, RunFacts

EXPLAINS = frozenset(
    {"engine_mismatch", "learning_rate_high", "entropy_collapse", "ratios_explode", "wrong_references"}
)
MIN_K1, MIN_LOST = 0.01, 0.03
MIN_GAP_AT_START, MIN_GAP = 0.15, 0.2
"""Distance of the mean -log prob of sampled tokens from the entropy, as shares of the entropy. Five steps of a small
healthy batch stay within 0.06, thirty within 0.1."""
MIN_DIFFERENCE, MAX_MEAN_RATIO, MAX_NOISE = 0.03, 0.87, 0.6
"""Mean of |log p - log q| of a token, mean of the ratios, and noise of a response, where no k3 is logged."""
MIN_STANDARD_ERRORS = 4.0
"""Standard errors: where the entropy is nearly 0, a few rare tokens are a large share of it."""
MAX_RATIO_P99 = 1.5
"""99th percentile of the ratios above which several updates on one batch have moved the policy: its samples are then of
another policy, whatever the temperature."""


def look(run: RunFacts) -> Finding | None:
    """Find tokens that the engine never draws, or draws too rarely or too often, from the first steps on."""
    return _without_tokens(run) or _at_other_temperature(run) or _by_ratios(run)


def _by_ratios(run: RunFacts) -> Finding | None:
    """Find ratios of whole responses whose mean is far below 1 from the first step on, where no k3 is logged.

    Responses that are drawn colder than the trainer computes have a higher probability by the engine. Rounding errs to
    both sides.
    """
    difference, ratios = run.series("mismatch/abs"), [p.value for p in run.series("mismatch/ratio_mean")]
    first = run.mean_at_start("mismatch/abs")
    if (
        first is None
        or first < MIN_DIFFERENCE
        or run.series("mismatch/k3")
        or difference[0].value < MIN_DIFFERENCE
        or statistics.fmean(ratios or [1.0]) > MAX_MEAN_RATIO
        # The ratio is a product over the tokens: of long responses, rounding alone moves it as far.
        or first * math.sqrt(run.mean_at_start("length/mean") or math.inf) > MAX_NOISE
    ):
        return None
    return Finding(
        "sampling_differs",
        "problem",
        0.8,
        f"The mean ratio of trainer to engine is {statistics.fmean(ratios):.2f}, from the first step on: the engine "
        "draws from a narrower distribution than the trainer computes.",
        run.evidence("mismatch/ratio_mean") + run.evidence("mismatch/abs"),
        "remove temperature, top-p and top-k from the engine's own configuration",
        EXPLAINS,
    )


def _without_tokens(run: RunFacts) -> Finding | None:
    """Find that the trainer has probability on tokens that the engine never draws."""
    k1, k3 = run.mean_at_start("mismatch/k1"), run.mean_at_start("mismatch/k3")
    if k1 is None or k3 is None or k1 < MIN_K1 or k1 - k3 < MIN_LOST:
        return None
    return Finding(
        "sampling_differs",
        "problem",
        min(1.0, 0.7 + k1 - k3),
        f"On average {k1 - k3:.0%} of the trainer's probability is on tokens that the engine never draws.",
        run.evidence("mismatch/k1") + run.evidence("mismatch/k3"),
        "--set rollout.top_p=1 --set rollout.top_k=0, and remove such options from the engine's own configuration",
        EXPLAINS,
    )


def _at_other_temperature(run: RunFacts) -> Finding | None:
    """Find that sampled tokens are surer, or less sure, than the trainer's policy is on average."""
    rows = [row.metrics for _, row in run.steps if "surprise" in row.metrics and "entropy" in row.metrics]
    # Samples of an older policy are not drawn from the trainer's present one, and need not agree with it.
    rows = [m for m in rows if m.get("mismatch/stale", 0.0) < 0.5 and m.get("ratio/p99", 1.0) < MAX_RATIO_P99]
    if len(rows) < NUM_COMPARED:
        return None
    if _gap(rows) > 0:
        # Groups that are kept because somebody erred have more rare tokens than others: that is no temperature.
        rows = [m for m in rows if m["groups/trained"] == m["groups/sampled"]]
        if len(rows) < NUM_COMPARED:
            return None
    gap_at_start, gap = _gap(rows[:NUM_COMPARED]), _gap(rows)
    if (
        gap_at_start * gap <= 0
        or abs(gap_at_start) < MIN_GAP_AT_START
        or abs(gap) < MIN_GAP
        or _num_standard_errors(rows) < MIN_STANDARD_ERRORS
    ):
        return None
    if gap > 0 and (run.mean_at_start("mismatch/k3") or 0.0) >= MIN_K1:
        return None  # an engine that computes other probabilities draws rare tokens too; `engine_mismatch` names it
    temperature = run.setting("rollout", "temperature", default=1.0)
    return Finding(
        "sampling_differs",
        "problem",
        min(1.0, 0.7 + abs(gap)),
        f"Sampled tokens are {abs(gap):.0%} {'more' if gap > 0 else 'less'} surprising to the trainer than its "
        f"entropy says: the engine samples {'hotter' if gap > 0 else 'colder'} than the trainer computes.",
        run.evidence("surprise") + run.evidence("entropy"),
        f"remove the temperature from the engine's own configuration: the recipe asks for {temperature:g}",
        EXPLAINS,
    )


def _num_standard_errors(rows: Sequence[Mapping[str, float]]) -> float:
    """Return the mean distance of the two over the steps, in its standard errors."""
    gaps = [m["surprise"] - m["entropy"] for m in rows]
    return abs(statistics.fmean(gaps)) / max(statistics.stdev(gaps) / math.sqrt(len(gaps)), 1e-9)


def _gap(rows: Sequence[Mapping[str, float]]) -> float:
    """Return by which share of the entropy the mean -log prob of sampled tokens is above it."""
    entropy = sum(m["entropy"] for m in rows)
    return (sum(m["surprise"] for m in rows) - entropy) / max(entropy, 1e-3 * len(rows))
