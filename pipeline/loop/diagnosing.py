"""The diagnosis during a run: a new cause is reported once, in the log and to listeners."""

from __future__ import annotations

from pathlib import Path

from verizero.pipeline.diagnosis.cards import rule_failed
from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.ranking import diagnose
from verizero.pipeline.diagnosis.run_facts import read
from verizero.pipeline.run.recorder import Recorder
from verizero.pipeline.run.schedule import Item
from verizero.pipeline.shown import one_line

EVENT = "verizero.diagnosis.finding"
MOST_BYTES = 4 * 2**20
"""Bytes of rollouts.jsonl that are read after a round, of its beginning and its end."""
AT_THE_END = frozenset({"seed_noise"})
"""Causes that only a run which is over can have: one that continues may still show its progress."""


def report_causes(recorder: Recorder, folder: Path, item: Item, is_over: bool) -> list[str]:
    """Say each cause above a note that the files of the run show, the first time; return a line for each of them.

    It reads the files and writes none. Whatever fails here becomes a warning, and the run continues.
    """
    try:
        findings = diagnose(
            read(folder, MOST_BYTES), lambda name, exc: warn(recorder, f"{item.label}: {rule_failed(name, exc)}")
        )
        shown = [f for f in findings if f.level != "note" and (is_over or f.cause not in AT_THE_END)]
        for finding in shown:
            report_cause(recorder, item, finding)
        return [line_of(f) for f in shown]
    except Exception as exc:  # whatever it is: advice must not end a run that trains
        warn(recorder, f"{item.label}: warning: the run could not be diagnosed: {type(exc).__name__}: {exc}")
        return []


def report_cause(recorder: Recorder, item: Item, finding: Finding) -> None:
    """Say a cause and send its event, unless this process has done so for the same stage."""
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
    """Say a warning once: a rule that fails after one round fails after each."""
    _, _, reason = text.partition("warning: ")
    if reason not in recorder.reported:
        recorder.reported.add(reason)
        recorder.say(one_line(text))


def line_of(finding: Finding) -> str:
    """Return a finding in one line."""
    return one_line(f"{finding.level}: {finding.cause}: {finding.sentence} Remedy: {finding.remedy}")
