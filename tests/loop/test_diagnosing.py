"""The diagnosis during a run: reported once, sent as an event, and without a trace in the run's files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.checks.recorded import OWN, unpack
from tests.stages.kill_driver import fingerprint
from tests.stages.sessions import Heard, lines, run_all
from tests.stages.start import ONLY_RL, start
from tests.stages.tiny import tiny
from verizero.pipeline.checks.cause import CAUSES
from verizero.pipeline.checks.run_facts import read
from verizero.pipeline.report.store import Store
from verizero.pipeline.report.trackers.base import Trackers
from verizero.pipeline.run.opening import open_run
from verizero.pipeline.run.recorder import Recorder
from verizero.pipeline.run.state import Item
from verizero.pipeline.whole_run import EVENT, finish, report_causes

ROUND_1, ROUND_2 = Item("rl", "rl", "round 1", 1, 15), Item("rl", "rl", "round 2", 2, 15)
CUT = ["rollout.max_response_tokens=3", "rl.steps_per_round=6", "evaluation.every_rounds=1"]
"""Every response is cut before it can have an answer."""


def recorder_of(folder):
    """A recorder next to a run's folder, the lines that it shows, and its events."""
    shown, events = Heard(), list[tuple[str, dict[str, Any]]]()
    recorder = Recorder(Store(folder / "other"), Trackers((), folder, "x", {}), shown)
    recorder.listener = lambda name, fields: events.append((name, fields))
    return recorder, shown, events


def recorded(name, folder):
    return unpack(OWN / f"{name}-0.tar.xz", folder / "run")


def run(folder):
    """Lines and events of a whole run whose responses are all cut."""
    events = []
    with open_run(tiny(overrides=[start(), *ONLY_RL, *CUT]), Path.cwd(), folder, "auto", Heard()) as session:
        session.recorder.listener = lambda name, fields: events.append((name, fields))
        run_all(session)
        finish(session)
        return lines(session), events


@pytest.mark.run
def test_a_run_says_a_cause_once_and_puts_it_on_the_rounds_and_the_page(tmp_path, monkeypatch):
    said, events = run(tmp_path / "whole")
    shown = [line for line in said if "problem: length_cap: " in line]
    assert len(shown) == 1
    assert shown[0].startswith("after round 1: ")
    mine = [fields for name, fields in events if name == EVENT and fields["cause"] == "length_cap"]
    assert len(mine) == 1
    json.dumps(mine)
    rounds = [fields for name, fields in events if name == "verizero.round.completed"]
    assert [any("length_cap" in line for line in f["causes"]) for f in rounds] == [True, True]
    page = (tmp_path / "whole" / "report.html").read_text()
    assert "length_cap" in page.partition('<section id="diagnosis">')[2].partition("</section>")[0]

    def broken(run):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setitem(CAUSES, "length_cap", replace(CAUSES["length_cap"], rules=(broken,)))
    said, _ = run(tmp_path / "broken")
    warnings = [line for line in said if "the rule length_cap of the diagnosis failed: ZeroDivision" in line]
    assert len(warnings) == 2, "once while it ran, and once for the page"
    assert fingerprint(tmp_path / "broken") == fingerprint(tmp_path / "whole")


def test_a_look_writes_nothing_and_names_what_is_new(tmp_path):
    folder = recorded("rate_times_ten", tmp_path)
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    recorder, shown, events = recorder_of(tmp_path)
    both = [report_causes(recorder, folder, item) for item in (ROUND_1, ROUND_2)]
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before
    assert both[0] == both[1] != []
    assert len(shown.lines) == len(events) == len(both[0])
    name, fields = events[0]
    assert (name, fields["cause"], fields["level"], fields["round"]) == (EVENT, "learning_rate_high", "problem", 1)
    assert fields["evidence"][0].startswith("metrics.jsonl:")


def test_a_healthy_run_says_nothing(tmp_path):
    recorder, shown, events = recorder_of(tmp_path)
    assert report_causes(recorder, recorded("healthy", tmp_path), ROUND_2) == []
    assert (shown.lines, events) == ([], [])


def test_whatever_fails_is_a_warning_and_the_run_goes_on(tmp_path):
    folder = recorded("rate_times_ten", tmp_path)
    recorder, shown, _ = recorder_of(tmp_path)

    def away(name, fields):
        raise ConnectionError("the server is gone")

    recorder.listener = away
    report_causes(recorder, folder, ROUND_1)
    (folder / "metrics.jsonl").unlink()
    for item in (ROUND_1, ROUND_2):
        assert report_causes(recorder, folder, item) == []
    warnings = [line.partition("warning: ")[2] for line in shown.lines if "warning: the run" in line]
    assert [w.partition(": ")[2].partition(":")[0] for w in warnings] == ["ConnectionError", "RunError"]


def test_of_many_responses_the_first_and_the_last_are_read(tmp_path):
    folder = recorded("healthy", tmp_path)
    whole = read(folder)
    size = (folder / "rollouts.jsonl").stat().st_size
    part = read(folder, size // 4)
    assert 0 < len(part.samples) < len(whole.samples) / 2
    assert set(part.samples) < set(whole.samples), "each with the number of its line"
    assert part.samples[-1] == whole.samples[-1]
    assert read(folder, size).samples == whole.samples
