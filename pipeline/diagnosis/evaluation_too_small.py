"""The held-out evaluation has so few prompts that its interval is wider than any likely gain."""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import PASS, Evidence, Finding
from verizero.pipeline.diagnosis.reading import METRICS, Reading

WIDE = 0.12
"""Half of an interval of 95 %: gains of a run are often smaller."""


def look(run: Reading) -> Finding | None:
    """Find an interval that is too wide to tell a gain."""
    for domain, (_, after) in run.before_and_after().items():
        measure = after.measure(domain)
        half, prompts = (measure["high"] - measure["low"]) / 2, int(after.row.domains[domain].get("num_prompts", 0))
        if half > WIDE:
            return Finding(
                "evaluation_too_small",
                "warning",
                min(1.0, half / 0.25),
                f"{domain}: pass@1 {measure['value']:.2f} has an interval of {measure['low']:.2f} to "
                f"{measure['high']:.2f}, by {prompts} prompts.",
                (Evidence(METRICS, after.line, f"{after.row.label}: {prompts} prompts", PASS),),
                f"evaluate on at least {int(prompts * (half / 0.04) ** 2) + 1} prompts, or raise evaluation.k",
            )
    return None
