"""The same few prompts come again and again, so that the policy learns them by heart.

Either the data has few rows, or many rows with the same text. It costs nothing while held-out prompts are solved as
often as those of training. Episodes may ask the same and differ in what their environment holds.
"""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.run_facts import RunFacts

MIN_TIMES, MIN_GAP = 8.0, 0.1
MIN_GROUPS = 20
"""Groups in the sample of rollouts.jsonl, below which texts are not compared."""


def look(run: RunFacts) -> Finding | None:
    """Find prompts that were sampled many times each, or many rows of one text."""
    distinct, groups = run.series("prompts/distinct"), run.series("groups/sampled")
    if not distinct or not groups:
        return None
    times = sum(p.value for p in groups) / max(1.0, distinct[-1].value)
    rows = [s.row for s in run.samples if s.row.ending is None]
    ids, texts = ({getattr(row, key) for row in rows} for key in ("prompt_id", "prompt"))
    rows_per_text = len(ids) / len(texts) if len(ids) >= MIN_GROUPS else 1.0
    if max(times, times * rows_per_text) < MIN_TIMES:
        return None
    return Finding(
        "prompts_repeat",
        "warning" if run.training_is_ahead(MIN_GAP) else "note",
        min(1.0, times * rows_per_text / 20),
        f"Each prompt was sampled {times * rows_per_text:.0f} times on average; "
        f"{distinct[-1].value / rows_per_text:.0f} differ.",
        run.evidence("prompts/distinct", -1),
        "add rows to data.train; the gap between training reward and held-out pass@1 tells when it starts to cost",
    )
