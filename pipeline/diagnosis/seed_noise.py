"""The run was so short, or its change so small, that another seed would show as much."""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import PASS, Evidence, Finding
from verizero.pipeline.diagnosis.run_facts import METRICS, RunFacts

FEW_STEPS = 10


def look(run: RunFacts) -> Finding | None:
    """Find a few steps whose intervals before and after overlap."""
    if not run.steps or len(run.steps) >= FEW_STEPS:
        return None
    for domain, (before, after) in run.before_and_after().items():
        first, last = before.measure(domain), after.measure(domain)
        if last["low"] <= first["high"] and first["low"] <= last["high"]:
            return Finding(
                "seed_noise",
                "warning",
                0.7,
                f"{domain}: pass@1 went from {first['value']:.3f} to {last['value']:.3f} in {len(run.steps)} steps, "
                "and both intervals hold both values: no progress is shown, nor its absence.",
                (
                    Evidence(METRICS, before.line, before.row.label, PASS),
                    Evidence(METRICS, after.line, after.row.label, PASS),
                ),
                f"train longer, or compare seeds: verizero compare RECIPE --seeds 5; now: {len(run.steps)} steps",
            )
    return None
