"""Prompts of the held-out evaluation are in the training data, so that pass@1 measures memory."""

from __future__ import annotations

import re

from verizero.pipeline.diagnosis.finding import Evidence, Finding
from verizero.pipeline.diagnosis.run_facts import RunFacts

OVERLAP_NOTE = re.compile(r"(\d+) of (\d+) evaluation prompts occur in training")
MIN_OVERLAP = 0.02


def look(run: RunFacts) -> Finding | None:
    """Find the note that the run wrote about its data when it began, unless it has left those prompts out."""
    if run.setting("data", "overlap", "on_overlap") == "drop":
        return None
    for note in run.notes:
        match = OVERLAP_NOTE.search(note)
        if match is None or int(match[1]) < MIN_OVERLAP * int(match[2]):
            continue
        return Finding(
            "evaluation_leak",
            "problem" if int(match[1]) > 0.2 * int(match[2]) else "warning",
            min(1.0, 0.8 + int(match[1]) / int(match[2])),
            f"{match[1]} of {match[2]} held-out prompts are in the training data.",
            (Evidence("run.json", 1, note[:160]),),
            "--set data.overlap.on_overlap=drop",
        )
    return None
