"""Diagnose a run of this project or of another trainer, by what is at a path: look for all causes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Each of these modules adds its causes to CAUSES.
from verizero.pipeline.checks import data, length, limits, optimizer, reward, sampling, verifier  # noqa: F401
from verizero.pipeline.checks.cause import CAUSES
from verizero.pipeline.checks.finding import Finding, ranked
from verizero.pipeline.checks.logs import options, trackers, trl, verl
from verizero.pipeline.checks.logs.facts import Reading, reading_of
from verizero.pipeline.checks.logs.logged import MOST_NAMED, Logged, LoggedRow, Tool, first_row, numbers
from verizero.pipeline.checks.logs.words import in_words_of, not_judged
from verizero.pipeline.checks.run_facts import METRICS, NUM_COMPARED, RunFacts, read
from verizero.pipeline.errors import RunError
from verizero.pipeline.near import did_you_mean, near_path

OnFailure = Callable[[str, Exception], None]
TOOLS: dict[str, Tool] = {tool.name: tool for tool in (trl.TOOL, verl.TOOL)}
READERS = (trl.read, verl.read, trackers.wandb_export, trackers.tensorboard, trackers.console)
"""In this order: what a trainer writes by itself is more than what it sends to a tracker."""


def diagnose(run: RunFacts, on_failure: OnFailure | None = None) -> list[Finding]:
    """Return the findings of all causes. One that another explains comes after it, as a note.

    `on_failure(cause, exception)` is called if a rule raises; None: the exception is raised.
    """
    findings: list[Finding] = []
    for name in sorted(CAUSES):
        try:
            finding = CAUSES[name].look(run)
        except Exception as exc:
            if on_failure is None:
                raise
            on_failure(name, exc)
            continue
        if finding is not None:
            findings.append(finding)
    return ranked(findings)


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
        line = f"{len(CAUSES)} causes were looked for in {steps} RL steps and {len(self.facts.evaluations)} evaluations"
        return line + (f"; most of them need at least {NUM_COMPARED} steps" if steps < NUM_COMPARED else "")


def diagnosed(paths: Sequence[Path], tool: str | None = None) -> Diagnosis:
    """Return the diagnosis of the run at the paths.

    `tool`: the trainer's name, as after --from; None: what is there tells.
    Raises: RunError if there are no logs, or they cannot be read.
    """
    if tool is None and len(paths) == 1 and is_ours(paths[0]):
        from verizero.pipeline.report.ended import end_of  # loads numpy, which no log of another trainer needs

        facts = read(paths[0])
        return Diagnosis(paths[0].name, facts, tuple(diagnose(facts)), end_of(paths[0], facts.info))
    logged = Logged()
    for path in paths:
        logged.add(_logged_at(path))
    if not logged.rows and not logged.responses:
        raise RunError(
            f"no logs were found at {', '.join(map(str, paths))}; looked for trainer_state.json and completions of "
            "TRL, JSONL and dumps of verl, event files of TensorBoard, text of a console, and histories as CSV or "
            "JSON, which W&B and MLflow export"
        )
    return _of_another(logged, tool, paths[0].resolve().name)


def diagnosed_rows(rows: Sequence[tuple[int, Mapping[str, Any]]], tool: str | None = None) -> Diagnosis:
    """Return the diagnosis of steps, each with its numbers by name. Raises: RunError if no trainer is known."""
    logged = Logged(rows=[LoggedRow("log", i, step, numbers(values)) for i, (step, values) in enumerate(rows, 1)])
    return _of_another(logged, tool, "this run")


def is_ours(path: Path) -> bool:
    """True if the path is no log of another trainer, so that it is read as a run of this project."""
    if path.is_file():
        return False
    return first_row(path / METRICS, "kind") is not None or not path.is_dir() or (path / "recipe.yaml").is_file()


def _of_another(logged: Logged, tool: str | None, name: str) -> Diagnosis:
    """Return the diagnosis of a run of another trainer."""
    reading: Reading = reading_of(logged, _tool_of(logged, tool))
    failed: list[str] = []
    causes = diagnose(reading.facts, lambda cause, exc: failed.append(f"not judged: {cause} ({exc})"))
    findings = in_words_of(reading, causes)
    judged = ", ".join(logged.files[:MOST_NAMED]) + (" and more" if len(logged.files) > MOST_NAMED else "")
    notes = (
        *(f"not read: {what}" for what in logged.skipped),
        *not_judged(reading),
        *failed,
        f"judged: {judged or name}",
    )
    return Diagnosis(f"{name}, a run of {reading.tool.title}", reading.facts, tuple(findings), notes=notes)


def _logged_at(path: Path) -> Logged:
    """Return what one path has."""
    if not path.exists():
        raise RunError(f"{path} does not exist{near_path(path)}")
    if path.suffix in options.SUFFIXES:
        logged = Logged()
        logged.settings = options.settings_of_file(path, logged)
        return logged
    logged = Logged()
    for read_logs in READERS:
        if not logged.rows and (own := read_logs(path)) is not None:
            logged.add(own)
    logged.keep_last_run()
    if path.is_dir() and logged.rows and not logged.settings:
        # transformers writes all arguments into the first event file, whatever else a run has.
        try:
            logged.settings = (trackers.tensorboard(path) or Logged()).settings
        except RunError as exc:
            logged.skipped.append(str(exc))
    return logged


def _tool_of(logged: Logged, name: str | None) -> Tool:
    """Return the trainer of that name, or the one whose names are among those of the numbers."""
    if name is not None:
        if name not in TOOLS:
            known = f"known: {', '.join(TOOLS)}"
            raise RunError(f"--from {name}: {did_you_mean(name, TOOLS, known)}")
        return TOOLS[name]
    counts = {tool.name: len({tool.plain(n) for n in logged.names} & set(tool.signs)) for tool in TOOLS.values()}
    best = max(counts, key=lambda own: counts[own])
    if not counts[best]:
        shown = ", ".join(sorted(logged.names)[:8])
        raise RunError(f"no trainer is known that writes these numbers: {shown}; name one: --from {' or '.join(TOOLS)}")
    return TOOLS[best]
