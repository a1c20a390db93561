"""The held-out evaluation has so few prompts that its interval is wider than any likely gain."""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import PASS, Evidence, Finding
from verizero.pipeline.diagnosis.run_facts import METRICS, RunFacts

MAX_HALF_WIDTH = 0.12
"""Half of an interval of 95 %: gains of a run are often smaller."""


def look(run: RunFacts) -> Finding | None:
    """Find an interval that is too wide to tell a gain."""
    for domain, (_, after) in run.before_and_after().items():
        measure = after.measure(domain)
        half_width, num_prompts = (
            (measure["high"] - measure["low"]) / 2,
            int(after.row.domains[domain].get("num_prompts", 0)),
        )
        if half_width > MAX_HALF_WIDTH:
            return Finding(
                "evaluation_too_small",
                "warning",
                min(1.0, half_width / 0.25),
                f"{domain}: pass@1 {measure['value']:.2f} has an interval of {measure['low']:.2f} to "
                f"{measure['high']:.2f}, by {num_prompts} prompts.",
                (Evidence(METRICS, after.line, f"{after.row.label}: {num_prompts} prompts", PASS),),
                f"evaluate on at least {int(num_prompts * (half_width / 0.04) ** 2) + 1} prompts, or raise "
                "evaluation.k",
            )
    return None
