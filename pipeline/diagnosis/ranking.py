"""All causes, looked for in one run, the most likely first."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import replace

import verizero.pipeline.diagnosis
from verizero.pipeline.diagnosis.finding import LEVELS, Finding, Level
from verizero.pipeline.diagnosis.reading import Reading

NO_CAUSES = frozenset({"cards", "finding", "ranking", "reading", "stated"})
EXPLAINED: Level = "note"


def causes() -> list[str]:
    """Return the names of all causes."""
    files = pkgutil.iter_modules(verizero.pipeline.diagnosis.__path__)
    return sorted(f.name for f in files if f.name not in NO_CAUSES and not f.name.startswith("_"))


def diagnose(run: Reading, failed: Callable[[str, Exception], None] | None = None) -> list[Finding]:
    """Return the findings of all causes. One that another explains comes after it, as a note.

    `failed` is told the name of a cause whose rule raised an exception, and the exception; None: it is raised.
    """
    findings: list[Finding] = []
    for name in causes():
        try:
            finding: Finding | None = importlib.import_module(f"verizero.pipeline.diagnosis.{name}").look(run)
        except Exception as exc:
            if failed is None:
                raise
            failed(name, exc)
            continue
        if finding is not None:
            findings.append(finding)
    return ranked(findings)


def ranked(findings: list[Finding]) -> list[Finding]:
    """Return the findings, the most likely cause first. One that another explains comes after it, as a note."""
    explained = {cause for f in findings for cause in f.explains if f.cause not in _over(findings, cause)}
    leveled = [replace(f, level=EXPLAINED) if f.cause in explained else f for f in findings]
    return sorted(leveled, key=lambda f: (-LEVELS.index(f.level), -f.confidence, f.cause))


def _over(findings: list[Finding], cause: str) -> frozenset[str]:
    """Return the causes that one of the findings explains: two that explain each other are both kept."""
    return next((f.explains for f in findings if f.cause == cause), frozenset())
