"""The diagnosis during a run: each cause that it finds is reported once, in the log and to listeners."""

from __future__ import annotations

from pathlib import Path

from verizero.pipeline.checks.diagnosis import diagnose
from verizero.pipeline.checks.finding import Finding
from verizero.pipeline.checks.page import rule_failed
from verizero.pipeline.checks.run_facts import read
from verizero.pipeline.run.recorder import Recorder
from verizero.pipeline.run.state import Item
from verizero.pipeline.shown import one_line

EVENT = "verizero.diagnosis.finding"
MAX_BYTES = 4 * 2**20
"""Bytes of rollouts.jsonl that are read after a round, from its beginning and its end."""


def report_causes(recorder: Recorder, folder: Path, item: Item) -> list[str]:
    """Report each cause above the level of a note that the files of the run show; return one line a cause.

    A cause is reported the first time only. It reads the files and writes none. An error becomes a warning, and the
    run continues.
    """
    try:
        findings = diagnose(
            read(folder, MAX_BYTES), lambda name, exc: warn(recorder, f"{item.label}: {rule_failed(name, exc)}")
        )
        shown = [f for f in findings if f.level != "note"]
        for finding in shown:
            report_cause(recorder, item, finding)
        return [line_of(f) for f in shown]
    except Exception as exc:  # any error: advice must not end a run that trains
        warn(recorder, f"{item.label}: warning: the run could not be diagnosed: {type(exc).__name__}: {exc}")
        return []


def report_cause(recorder: Recorder, item: Item, finding: Finding) -> None:
    """Write a cause to the log and send its event, unless this process has done so for the same stage."""
    key = f"{item.stage}: {finding.cause}"
    if key in recorder.reported:
        return
    recorder.reported.add(key)
    recorder.say(one_line(f"{item.label}: {line_of(finding)}"))
    fields = {
        "cause": finding.cause,
        "level": finding.level,
        "confidence": finding.confidence,
        "sentence": one_line(finding.sentence),
        "evidence": [one_line(str(e)) for e in finding.evidence],
        "remedy": one_line(finding.remedy),
    }
    recorder.event(EVENT, {"stage": item.stage, "round": item.round, **fields})


def warn(recorder: Recorder, text: str) -> None:
    """Write a warning to the log once: a rule that fails after one round fails after each."""
    _, _, reason = text.partition("warning: ")
    if reason not in recorder.reported:
        recorder.reported.add(reason)
        recorder.say(one_line(text))


def line_of(finding: Finding) -> str:
    """Return a finding in one line."""
    return one_line(f"{finding.level}: {finding.cause}: {finding.sentence} Remedy: {finding.remedy}")
