"""Contamination: the questions of a suite that occur in what a run was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from verizero.pipeline.config.data import Source
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.data.overlap import Overlap, find_overlap
from verizero.pipeline.data.prompts import read_demonstrations, read_prompts
from verizero.pipeline.errors import DataError, RunError
from verizero.pipeline.report.intervals import rate_interval
from verizero.pipeline.run.origin import recipe_folder
from verizero.pipeline.types import Prompt


@dataclass(frozen=True)
class OverlapFound:
    """The overlap of a suite with a run's training data."""

    overlap: Overlap
    unread: str
    """The part of the training data that could not be read; "" if all was."""

    def note(self, measures: Mapping[str, Any]) -> str:
        """Return the overlap in words, with pass@1 of the rows that it leaves."""
        text = f"contamination: {self.overlap}"
        matching = {m.evaluation_id for m in self.overlap.matches}
        rest = [value for prompt_id, value in measures.get("by_prompt", []) if prompt_id not in matching]
        if matching and rest:
            clean = rate_interval(rest)
            text += f"; without them pass@1 is {clean.value:.3f} [{clean.low:.3f}, {clean.high:.3f}]"
        return text + (f"; {self.unread}" if self.unread else "")


def overlaps_with(run: Path, suites: Mapping[str, Sequence[Prompt]]) -> dict[str, OverlapFound]:
    """Return the overlap of each suite's prompts with the run's training prompts and demonstrations."""
    train, unread = trained_on(run)
    return {name: OverlapFound(find_overlap(train, prompts), unread) for name, prompts in suites.items()}


def trained_on(run: Path) -> tuple[list[Prompt], str]:
    """Return what the run trained on: its rows, and demonstrations of its own sources; and what could not be read."""
    rows = run / "data" / "train.jsonl"
    train: list[Prompt] = []
    if rows.is_file() and rows.stat().st_size:
        train = read_prompts([Source(file=str(rows.resolve()), graded=False)], 0)[0]
    recipe = load_recipe(run / "recipe.yaml")
    if not recipe.data.demonstrations:
        return train, ""
    try:
        base = recipe_folder(run) or run
        shown = read_demonstrations(recipe.data.demonstrations, (), recipe.seed, base, {})
    except (DataError, RunError) as exc:
        return train, f"its demonstrations could not be read ({exc})"
    return [*train, *(replace(p, id=f"demonstrations/{p.id}") for p in shown.prompts)], ""
