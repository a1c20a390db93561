"""Places of causes among findings, and findings in a line."""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Finding


def place_of(cause: str, findings: list[Finding]) -> int | None:
    """Return the place of a cause among the findings, from 0; None if it is not there."""
    return next((i for i, f in enumerate(findings) if f.cause == cause), None)


def shown(findings: list[Finding]) -> str:
    """Return the causes in order."""
    return ", ".join(f"{f.cause} ({f.level})" for f in findings) or "nothing"
