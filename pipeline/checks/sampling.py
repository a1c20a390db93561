"""Causes between the engine that samples and the trainer: other weights, numbers, tokens or probabilities."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from verizero.pipeline.checks.cause import also, cause
from verizero.pipeline.checks.finding import Finding
from verizero.pipeline.checks.limits import MIN_DIFFERENCE, MISMATCH
from verizero.pipeline.checks.run_facts import NUM_COMPARED, RunFacts

MIN_K1, MIN_LOST = 0.01, 0.03
MIN_GAP_AT_START, MIN_GAP = 0.15, 0.2
"""Distance of the mean -log prob of sampled tokens from the entropy, as shares of the entropy. Five steps of a small
healthy batch stay within 0.06, thirty within 0.1."""
MAX_MEAN_RATIO, MAX_NOISE = 0.87, 0.6
"""Mean of the ratios, and noise of a response, where no k3 is logged."""
MIN_STANDARD_ERRORS = 4.0
"""Standard errors: where the entropy is nearly 0, a few rare tokens are a large share of it."""
NARROWING: Mapping[str, tuple[Callable[[float], bool], float]] = {
    "top_p": (lambda p: p < 0.8, 1),
    "top_k": (lambda k: k <= 10, 0),
    "min_p": (lambda p: p >= 0.2, 0),
    "repetition_penalty": (lambda r: r >= 1.2 or r < 0.9, 1),
}
"""Option -> whether it takes much of the distribution away, and the value that takes nothing."""
MAX_RATIO_P99 = 1.5
"""99th percentile of the ratios above which several updates on one batch have moved the policy: its samples are then of
another policy, whatever the temperature."""


@cause(
    "sample with top-p 1, without top-k, at the temperature that the trainer computes with",
    explains="engine_mismatch learning_rate_high entropy_collapse ratios_explode wrong_references",
    needs=MISMATCH,
)
def sampling_differs(run: RunFacts) -> Finding | None:
    """The engine draws tokens from another distribution than the recipe says: a top-p, top-k or temperature of its own.

    Tokens that the engine never draws have a probability in the trainer. So the mean ratio of the two is below 1, which
    no rounding does: the estimates k1 and k3 of their distance then differ (John Schulman, Approximating KL divergence,
    2020: k3 - k1 is the mean ratio less 1, which is 0 where both have the same tokens).

    A temperature shows elsewhere: the mean of -log prob of sampled tokens, by the trainer, is its entropy only if they
    were drawn from the trainer's own distribution. It is smaller where they were drawn colder, and larger where hotter.
    """
    k1, k3 = run.mean_at_start("mismatch/k1"), run.mean_at_start("mismatch/k3")
    if k1 is None or k3 is None or k1 < MIN_K1 or k1 - k3 < MIN_LOST:
        return None
    return Finding(
        min(1.0, 0.7 + k1 - k3),
        f"On average {k1 - k3:.0%} of the trainer's probability is on tokens that the engine never draws.",
        run.evidence("mismatch/k1") + run.evidence("mismatch/k3"),
        "--set rollout.top_p=1 --set rollout.top_k=0, and remove such options from the engine's own configuration",
    )


@also("sampling_differs")
def narrowed_by_options(run: RunFacts) -> Finding | None:
    """Find sampling options that keep the engine from most tokens which the trainer's probabilities count."""
    own = run.setting("rollout", default={})
    if run.setting(run.section, "algorithm", "keep_sampling"):
        return None  # the trainer cuts off the same tokens
    narrow = [name for name, (is_far, _) in NARROWING.items() if own.get(name) and is_far(own[name])]
    if not narrow:
        return None
    written = ", ".join(f"{name}={own[name]:g}" for name in narrow)
    return Finding(
        0.9,
        f"Responses are sampled with {written}, which the trainer does not know of: its probabilities count tokens "
        "that are never drawn, and the members of a group are alike.",
        run.evidence("entropy") + run.evidence("reward/sampled"),
        " ".join(f"--set rollout.{name}={NARROWING[name][1]}" for name in narrow),
        frozenset({"too_easy", "too_hard", "prompts_repeat", "advantages_vanish", "length_cap"}),
        level="warning" if run.has_learned else "problem",
    )


@also("sampling_differs")
def other_temperature(run: RunFacts) -> Finding | None:
    """Find that sampled tokens are surer, or less sure, than the trainer's policy is on average."""
    rows = [row.metrics for _, row in run.steps if "surprise" in row.metrics and "entropy" in row.metrics]
    # Samples of an older policy are not drawn from the trainer's present one, and need not agree with it.
    rows = [m for m in rows if m.get("mismatch/stale", 0.0) < 0.5 and m.get("ratio/p99", 1.0) < MAX_RATIO_P99]
    if len(rows) >= NUM_COMPARED and _gap(rows) > 0:
        # Groups that are kept because somebody erred have more rare tokens than others: that is no temperature.
        rows = [m for m in rows if m["groups/trained"] == m["groups/sampled"]]
    if len(rows) < NUM_COMPARED:
        return None
    gap_at_start, gap = _gap(rows[:NUM_COMPARED]), _gap(rows)
    gaps = [m["surprise"] - m["entropy"] for m in rows]
    if (
        gap_at_start * gap <= 0
        or abs(gap_at_start) < MIN_GAP_AT_START
        or abs(gap) < MIN_GAP
        or abs(statistics.fmean(gaps)) / max(statistics.stdev(gaps) / math.sqrt(len(gaps)), 1e-9) < MIN_STANDARD_ERRORS
    ):
        return None
    if gap > 0 and (run.mean_at_start("mismatch/k3") or 0.0) >= MIN_K1:
        return None  # an engine that computes other probabilities draws rare tokens too; `engine_mismatch` names it
    temperature = run.setting("rollout", "temperature", default=1.0)
    return Finding(
        min(1.0, 0.7 + abs(gap)),
        f"Sampled tokens are {abs(gap):.0%} {'more' if gap > 0 else 'less'} surprising to the trainer than its "
        f"entropy says: the engine samples {'hotter' if gap > 0 else 'colder'} than the trainer computes.",
        run.evidence("surprise") + run.evidence("entropy"),
        f"remove the temperature from the engine's own configuration: the recipe asks for {temperature:g}",
    )


@also("sampling_differs")
def narrower_by_ratios(run: RunFacts) -> Finding | None:
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
        0.8,
        f"The mean ratio of trainer to engine is {statistics.fmean(ratios):.2f}, from the first step on: the engine "
        "draws from a narrower distribution than the trainer computes.",
        run.evidence("mismatch/ratio_mean") + run.evidence("mismatch/abs"),
        "remove temperature, top-p and top-k from the engine's own configuration",
    )


def _gap(rows: Sequence[Mapping[str, float]]) -> float:
    """Return by which share of the entropy the mean -log prob of sampled tokens is above it."""
    entropy = sum(m["entropy"] for m in rows)
    return (sum(m["surprise"] for m in rows) - entropy) / max(entropy, 1e-3 * len(rows))


@cause(
    "look at how the rollout engine gets the trainer's weights, and whether that fails",
    explains="engine_mismatch entropy_collapse sampling_differs learning_rate_high learning_rate_low "
    "infrastructure_zeros",
    needs=MISMATCH,
)
def stale_engine_weights(run: RunFacts) -> Finding | None:
    """The engine samples with weights that are not the trainer's, more so with every update.

    Engine and trainer agreed at the beginning. Since then the trainer has moved and the engine has not followed: the
    weights were not sent, were not loaded, or only sometimes. Every reward is then one of an older policy.
    """
    # Trainers that log no k3 log the mean of |log p - log q|, which is the larger of the two while both are small.
    name, least = ("mismatch/k3", 0.01) if run.series("mismatch/k3") else ("mismatch/abs", 0.05)
    points, last = run.series(name), run.mean_at_end(name)
    if last is None or last < least or points[0].value * 4 > last:
        return None
    return Finding(
        min(1.0, 0.7 + last),
        f"Engine and trainer agreed at the first step ({points[0].value:.1e} nats a token) and differ by {last:.2f} "
        "at the last: the engine does not get the trainer's weights.",
        run.evidence(name, 0, 4, -1),
        "run `verizero doctor`; for servers of vLLM compare rollout.vllm.transfer with docs/engines.md",
    )
