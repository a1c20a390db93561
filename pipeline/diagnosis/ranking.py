"""Look for all causes in a run, and order the findings: the most likely first."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import replace

import verizero.pipeline.diagnosis
from verizero.pipeline.diagnosis.finding import LEVELS, Finding, Level
from verizero.pipeline.diagnosis.run_facts import RunFacts

OTHER_FILES = frozenset(
    {
        "answer_numbers",
        "any_run",
        "cards",
        "finding",
        "group_answers",
        "length_pay",
        "logs",
        "page",
        "ranking",
        "run_facts",
    }
)
LEVEL_IF_EXPLAINED: Level = "note"


def causes() -> list[str]:
    """Return the names of all causes."""
    files = pkgutil.iter_modules(verizero.pipeline.diagnosis.__path__)
    return sorted(f.name for f in files if f.name not in OTHER_FILES and not f.name.startswith("_"))


def diagnose(run: RunFacts, on_failure: Callable[[str, Exception], None] | None = None) -> list[Finding]:
    """Return the findings of all causes. One that another explains comes after it, as a note.

    `on_failure(cause, exception)` is called if a rule raises; None: the exception is raised.
    """
    findings: list[Finding] = []
    for name in causes():
        try:
            finding: Finding | None = importlib.import_module(f"verizero.pipeline.diagnosis.{name}").look(run)
        except Exception as exc:
            if on_failure is None:
                raise
            on_failure(name, exc)
            continue
        if finding is not None:
            findings.append(finding)
    return ranked(findings)


def ranked(findings: list[Finding]) -> list[Finding]:
    """Return the findings, the most likely cause first. One that another explains comes after it, as a note."""
    explained = {cause for f in findings for cause in f.explains if f.cause not in _explained_by(findings, cause)}
    with_levels = [replace(f, level=LEVEL_IF_EXPLAINED) if f.cause in explained else f for f in findings]
    return sorted(with_levels, key=lambda f: (-LEVELS.index(f.level), -f.confidence, f.cause))


def _explained_by(findings: list[Finding], cause: str) -> frozenset[str]:
    """Return what the finding of `cause` itself explains, so that two that explain each other both stay."""
    return next((f.explains for f in findings if f.cause == cause), frozenset())
