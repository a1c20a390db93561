"""Say findings in the words of the tool whose run it is: its files, its names of numbers, its options."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from verizero.pipeline.checks.cause import CAUSES
from verizero.pipeline.checks.finding import Evidence, Finding
from verizero.pipeline.checks.logs.facts import Reading
from verizero.pipeline.checks.run_facts import INFO, METRICS, ROLLOUTS


def in_words_of(reading: Reading, findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with the tool's files, names and options."""
    return [
        replace(f, evidence=tuple(_evidence(reading, e) for e in f.evidence), remedy=_remedy(reading, f))
        for f in findings
    ]


def _remedy(reading: Reading, finding: Finding) -> str:
    """Return the rule's change with the tool's options, or the text of the tool's table, or that of no tool."""
    tool, changes = reading.tool, _changes(finding.remedy)
    options = {field: name for name, field in tool.options.items()}
    if changes and all(field in options for field in changes):
        written = ", ".join(f"{options[field]}={value}" for field, value in changes.items())
        return f"set {written} in {tool.where}"
    return tool.remedies.get(finding.cause) or CAUSES[finding.cause].elsewhere


def _changes(text: str) -> dict[str, str]:
    """Return field -> value of a remedy that is nothing but `--set field=value`; empty for any other."""
    try:
        words = shlex.split(text)
    except ValueError:
        return {}
    if len(words) % 2 or any(w != "--set" for w in words[::2]) or any("=" not in w for w in words[1::2]):
        return {}
    return dict(w.split("=", 1) for w in words[1::2])


def _evidence(reading: Reading, evidence: Evidence) -> Evidence:
    """Return evidence with the file and line of the tool's own log, and its name of the number."""
    file, line, text = evidence.file, evidence.line, evidence.text
    if file == METRICS:
        places = reading.metric_places[line - 1]
        file, line = places.get(evidence.metric) or next(iter(places.values()))
    elif file == ROLLOUTS:
        file, line = reading.response_places[line - 1]
    elif file == INFO:
        file, line = reading.logged.files[0], 1
    if evidence.metric:
        text = text.replace(evidence.metric, reading.tool.theirs(evidence.metric))
    return Evidence(file, line, text, evidence.metric)


def not_judged(reading: Reading) -> list[str]:
    """Return a line for each thing that is missing, with the causes that are not judged without it."""
    lines = []
    if not reading.logged.settings:
        lines.append("no option of the run is known: give its script or configuration as a further path")
    facts, tool = reading.facts, reading.tool
    silent: dict[tuple[str, ...], list[str]] = {}
    for name, cause in sorted(CAUSES.items()):
        there = {"responses": bool(facts.samples), "evaluations": bool(facts.evaluations)}
        if cause.needs and not any(there[n] if n in there else facts.series(n) for n in cause.needs):
            silent.setdefault(cause.needs, []).append(name)
    for names, causes in silent.items():
        hint = next((f" ({tool.logs_if[name]})" for name in names if name in tool.logs_if), "")
        theirs = " or ".join(tool.theirs(name) for name in names)
        lines.append(f"not judged, for lack of {theirs}{hint}: {', '.join(causes)}")
    return lines
