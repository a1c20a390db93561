"""Tokens of the prompt are trained on as if the policy had written them.

More tokens of each response have a gradient than were sampled. The policy then learns to predict questions with the
advantage of its answers, and ratios and mismatch of those tokens mean nothing.
"""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Evidence, Finding
from verizero.pipeline.diagnosis.run_facts import METRICS, RunFacts

EXPLAINS = frozenset({"sampling_differs", "engine_mismatch", "stale_engine_weights", "ratios_explode"})
REMEDY = "look at the response mask (pipeline/train/collate.py, pipeline/train/texts.py), or at the change made to it"
MIN_EXCESS = 0.5
"""Tokens a response. The two means are of the same responses, so any real difference is an error."""


def look(run: RunFacts) -> Finding | None:
    """Find more trained than sampled tokens a response, or demonstrations of which every token trains."""
    lengths = run.trained_and_sampled_lengths()
    if lengths is None or lengths[0] - lengths[1] < MIN_EXCESS:
        return _of_demonstrations(run)
    trained, sampled, evidence = lengths
    return Finding(
        "mask_trains_prompt",
        "problem",
        0.95,
        f"{trained:.1f} tokens of each response are trained on, but {sampled:.1f} were sampled: the rest is prompt.",
        evidence,
        REMEDY,
        EXPLAINS,
    )


def _of_demonstrations(run: RunFacts) -> Finding | None:
    """Find that SFT trained on every token of every row but the first, which nothing comes before."""
    rows = [(line, row.step, row.metrics) for line, row in run.imitation if "rows/tokens" in row.metrics]
    if not rows or any(m["tokens"] < m["rows/tokens"] - m["rows"] for _, _, m in rows):
        return None
    line, step, last = rows[-1]
    shown = f"step {step}: tokens={last['tokens']:.0f}, rows/tokens={last['rows/tokens']:.0f}"
    return Finding(
        "mask_trains_prompt",
        "problem",
        0.9,
        "SFT trains on every token of every demonstration, those of its prompt too.",
        (Evidence(METRICS, line, shown, "tokens"),),
        REMEDY,
        EXPLAINS,
    )
