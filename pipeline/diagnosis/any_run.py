"""Diagnose a run of this project or of another trainer, by what is at a path."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.logs import find
from verizero.pipeline.diagnosis.logs.facts import Reading
from verizero.pipeline.diagnosis.logs.logged import Logged, LoggedRow, first_row, numbers
from verizero.pipeline.diagnosis.logs.silent import silent_rules
from verizero.pipeline.diagnosis.logs.words import in_words_of
from verizero.pipeline.diagnosis.ranking import causes, diagnose
from verizero.pipeline.diagnosis.run_facts import METRICS, NUM_COMPARED, RunFacts, read


@dataclass(frozen=True)
class Diagnosis:
    """The findings about a run, and its facts."""

    title: str
    facts: RunFacts
    findings: tuple[Finding, ...]
    ended: str = ""
    """A line about the end of a run of this project; empty if it is not known."""
    notes: tuple[str, ...] = ()
    """Lines about files that were not read and causes that were not judged, with the reasons."""

    @property
    def looked(self) -> str:
        """Return a line that says in what was looked for causes."""
        steps = len(self.facts.steps)
        line = (
            f"{len(causes())} causes were looked for in {steps} RL steps and {len(self.facts.evaluations)} evaluations"
        )
        return line + (f"; most of them need at least {NUM_COMPARED} steps" if steps < NUM_COMPARED else "")


def diagnosed(
    paths: Sequence[Path],
    tool: str | None = None,
    on_failure: Callable[[str, Exception], None] | None = None,
) -> Diagnosis:
    """Return the diagnosis of the run at the paths.

    `tool`: the trainer's name, as after --from; None: what is there tells. `on_failure` as in `diagnose`.
    Raises: RunError if there are no logs, or they cannot be read.
    """
    if tool is None and len(paths) == 1 and is_ours(paths[0]):
        from verizero.pipeline.report.ended import end_of  # loads numpy, which no log of another trainer needs

        facts = read(paths[0])
        ended = end_of(paths[0], facts.info)
        return Diagnosis(paths[0].name, facts, tuple(diagnose(facts, on_failure)), ended)
    return _of(find.read(paths, tool), paths[0].resolve().name, on_failure)


def diagnosed_rows(rows: Sequence[tuple[int, Mapping[str, Any]]], tool: str | None = None) -> Diagnosis:
    """Return the diagnosis of numbers that a trainer is logging: a step, and its names and values, in each row.

    Raises: RunError if no trainer is known that writes these numbers.
    """
    logged = Logged(rows=[LoggedRow("log", i, step, numbers(values)) for i, (step, values) in enumerate(rows, 1)])
    return _of(find.reading(logged, tool), "this run", None)


def _of(reading: Reading, name: str, on_failure: Callable[[str, Exception], None] | None) -> Diagnosis:
    """Return the diagnosis of a run of another trainer."""
    findings = in_words_of(reading, diagnose(reading.facts, on_failure))
    notes = tuple(f"not read: {what}" for what in reading.logged.skipped) + silent_rules(reading)
    title = f"{name}, a run of {reading.tool.title}"
    return Diagnosis(title, reading.facts, tuple(findings), notes=notes)


def is_ours(path: Path) -> bool:
    """True if the path is no log of another trainer, so that it is read as a run of this project."""
    if path.is_file():
        return False
    row = first_row(path / METRICS)
    return (row is not None and "kind" in row) or not path.is_dir() or (path / "recipe.yaml").is_file()
