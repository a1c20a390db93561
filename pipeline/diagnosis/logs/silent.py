"""Say which rules cannot judge a run of another trainer, for lack of what."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from verizero.pipeline.diagnosis.logs.facts import Reading
from verizero.pipeline.diagnosis.run_facts import RunFacts

RESPONSES, EVALUATIONS = "responses", "evaluations"
NEEDED_BY: Mapping[tuple[str, ...], tuple[str, ...]] = MappingProxyType(
    {
        ("truncated",): ("end_token_missing", "length_cap"),
        ("length/mean",): ("length_drift",),
        ("learning_rate",): ("learning_rate_low",),
        ("grad_norm",): ("gradients_always_clipped",),
        ("entropy",): ("entropy_collapse",),
        ("clip_fraction/high",): ("clip_stops_learning",),
        ("kl/coef",): ("kl_too_strong",),
        ("kl/k1",): ("reference_never_moves",),
        ("groups/sampled",): ("too_easy", "too_hard"),
        ("mismatch/k3", "mismatch/abs"): ("engine_mismatch", "sampling_differs", "stale_engine_weights"),
        ("policy/version",): ("policy_lag",),
        ("reward/verdict_std",): ("reward_scales",),
        ("ratio/p99",): ("ratios_explode",),
        ("critic/explained_variance",): ("critic_not_learning",),
        ("prompts/distinct",): ("prompts_repeat",),
        ("reference/version",): ("reference_moves_too_often",),
        ("responses/tokens",): ("mask_leaves_end", "mask_trains_prompt"),
        (RESPONSES,): (
            "constant_reward",
            "evaluation_leak",
            "false_negatives",
            "false_positives",
            "infrastructure_zeros",
            "wrong_references",
        ),
        (EVALUATIONS,): ("evaluation_too_small", "seed_noise", "sft_memorised"),
    }
)
"""Numbers, one of which is enough -> causes that are not judged without them."""


def silent_rules(reading: Reading) -> tuple[str, ...]:
    """Return a line for each thing that is missing, with the causes that are not judged without it."""
    lines = []
    for names, causes in NEEDED_BY.items():
        if any(has(reading.facts, name) for name in names):
            continue
        theirs = " or ".join(reading.tool.theirs(name) for name in names)
        hints = [reading.tool.logs_if[name] for name in names if name in reading.tool.logs_if]
        hint = f" ({hints[0]})" if hints else ""
        lines.append(f"not judged, for lack of {theirs}{hint}: {', '.join(causes)}")
    return tuple(lines)


def has(facts: RunFacts, name: str) -> bool:
    """True if the facts have a number in some step, or responses, or evaluations."""
    if name == RESPONSES:
        return bool(facts.samples)
    if name == EVALUATIONS:
        return bool(facts.evaluations)
    return bool(facts.series(name))
