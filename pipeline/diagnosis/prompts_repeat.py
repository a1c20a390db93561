"""The same few prompts come again and again, so that the policy learns them by heart.

Either the data has few rows, or many rows with the same text. It costs nothing while held-out prompts are solved as
often as those of training. Episodes may ask the same and differ in what their environment holds.
"""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.reading import Reading

OFTEN, GAP = 8.0, 0.1
FEWEST = 20
"""Groups in the sample of rollouts.jsonl, below which texts are not compared."""


def look(run: Reading) -> Finding | None:
    """Find prompts that were sampled many times each, or many rows of one text."""
    distinct, groups = run.series("prompts/distinct"), run.series("groups/sampled")
    if not distinct or not groups:
        return None
    times = sum(p.value for p in groups) / max(1.0, distinct[-1].value)
    single = [s.row for s in run.samples if s.row.ending is None]
    names, texts = ({getattr(row, key) for row in single} for key in ("prompt_id", "prompt"))
    copies = len(names) / len(texts) if len(names) >= FEWEST else 1.0
    if max(times, times * copies) < OFTEN:
        return None
    return Finding(
        "prompts_repeat",
        "warning" if run.is_ahead(GAP) else "note",
        min(1.0, times * copies / 20),
        f"Each prompt was sampled {times * copies:.0f} times on average; {distinct[-1].value / copies:.0f} differ.",
        run.shown("prompts/distinct", -1),
        "add rows to data.train; the gap between training reward and held-out pass@1 tells when it starts to cost",
    )
