"""What a run shows while it goes: lines with a clock of their own, the thread's lines, and a bar's last row."""

import sys
import threading
import time
from contextlib import closing
from importlib.machinery import ModuleSpec
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.processes import until
from verizero.pipeline.report import progress
from verizero.pipeline.report.progress import Bars, Lines, Logged, Progress, for_terminal
from verizero.pipeline.report.store import Store
from verizero.pipeline.report.trackers.base import Trackers
from verizero.pipeline.run.recorder import Recorder


def lines_at():
    clock, out = SimpleNamespace(now=100.0), StringIO()
    return Lines(out, clock=lambda: clock.now), clock, out


def shown(out):
    return [line.split("] ", 1)[1] for line in out.getvalue().splitlines()]


def test_what_is_under_way_is_shown_after_3_seconds_at_first_and_every_10_later():
    lines, clock, out = lines_at()
    lines.say("demo_short: starts")
    lines.under_way("loads the model")
    for second in range(1, 61):
        clock.now = 100.0 + second
        lines.beat()
    assert out.getvalue().splitlines()[:3] == [
        "[   0.0 s] demo_short: starts",
        "[   3.0 s] loads the model, 3 s",
        "[   6.0 s] loads the model, 6 s",
    ]
    at = [float(line[1:].split()[0]) for line in out.getvalue().splitlines()]
    assert at == [0, 3, 6, 12, 22, 32, 42, 52]


def test_counts_are_shown_with_the_seconds_that_are_left():
    lines, clock, out = lines_at()
    what = "evaluate before training: generate"
    lines.under_way(what)
    clock.now += 4
    lines.under_way(what, 0, 540)
    clock.now += 8
    lines.under_way(what, 162, 540)
    lines.under_way(what, 163, 540)
    assert shown(out) == [
        f"{what}, 0% of 540 responses, 4 s",
        f"{what}, 30% of 540 responses, about 28 s left",
    ]


def test_the_time_of_an_activity_begins_anew_with_each():
    lines, clock, out = lines_at()
    for what in ("round 1 step 1: generate", "round 1 step 1", "round 1 step 1: generate"):
        clock.now += 20
        lines.under_way(what)
    clock.now += 5
    lines.beat()
    assert shown(out) == ["round 1 step 1: generate, 5 s"]
    lines.begin("rl", 0, 3)
    clock.now += 10
    lines.beat()
    assert shown(out)[1:] == ["rl: 3 steps", "rl, 10 s"]


def test_steps_that_are_short_leave_no_room_for_lines_without_numbers():
    lines, clock, out = lines_at()
    clock.now += 60
    lines.begin("sft", 0, 100)
    for half in range(1, 101):
        clock.now += 0.5
        lines.beat()
        if half % 5 == 0:
            lines.advance(half // 5, {"loss": 1.0})
    assert all("loss" in line for line in shown(out)[1:])
    assert len(shown(out)) == 7, "one line after each three steps of 2.5 s"


def test_the_thread_breaks_the_silence_until_close():
    out = StringIO()
    lines = Lines(out, beats=True, every_s=0.05)
    lines.under_way("loads the model")
    until(lambda: len(shown(out)) > 3, "lines that nobody asked for")
    lines.close()
    written = out.getvalue()
    assert all(line.startswith("loads the model, ") for line in shown(out))
    time.sleep(0.2)
    assert out.getvalue() == written
    assert not [t for t in threading.enumerate() if t.name == "progress"]


def test_a_thread_whose_log_is_closed_ends():
    out = StringIO()
    lines = Lines(out, beats=True, every_s=0.05)
    out.close()
    lines.under_way("loads the model")
    until(lambda: not [t for t in threading.enumerate() if t.name == "progress"], "the end of the thread")
    lines.close()


def test_threads_are_for_the_lines_that_people_read(monkeypatch):
    monkeypatch.setattr(sys, "stderr", StringIO())
    before = threading.active_count()
    Lines()
    for_terminal(beats=False)
    assert threading.active_count() == before
    lines = for_terminal()
    assert threading.active_count() == before + 1
    lines.close()
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("shell", "widgets", "expected"),
    [
        (None, True, Lines),
        (SimpleNamespace(), True, Lines),
        (SimpleNamespace(kernel=1), False, Lines),
        (SimpleNamespace(kernel=1), True, Bars),
    ],
)
def test_bars_are_for_notebooks_with_widgets(shell, widgets, expected, monkeypatch):
    monkeypatch.setattr(sys, "stderr", StringIO())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(progress, "find_spec", lambda name: ModuleSpec(name, None) if widgets else None)
    shown = for_terminal(beats=False)
    shown.close()
    assert type(shown) is expected


def test_phases_are_under_way_and_their_responses_are_counted(tmp_path):
    lines, clock, out = lines_at()
    recorder = Recorder(Store(tmp_path), Trackers((), tmp_path, "x", {}), lines)
    recorder.step_label = "round 1 step 2"
    with recorder.timed("total"):
        with recorder.timed("generate"):
            count = recorder.counter(8)
            for num in (3, 5):
                clock.now += 12
                count(num)
        clock.now += 12
        lines.beat()
    with recorder.timed("evaluate/verify"):
        clock.now += 12
        lines.beat()
    recorder.close()
    assert shown(out) == [
        "round 1 step 2: generate, 37% of 8 responses, about 20 s left",
        "round 1 step 2: generate, 100% of 8 responses, about 0 s left",
        "round 1 step 2, 12 s",
        "round 1 step 2: verify, 12 s",
    ]


def test_a_terminal_shows_what_is_under_way_in_the_last_row(monkeypatch):
    monkeypatch.setattr(sys, "stderr", StringIO())
    with closing(Bars()) as bars:
        bars.under_way("[b]loads[/b]")
        bars.begin("rl", 0, 20)
        assert [t.description for t in bars.rich.tasks] == ["rl"]
        bars.under_way("round 1 step 1: generate", 0, 8)
        bars.under_way("round 1 step 1: generate", 3, 8)
        row = bars.rich.tasks[-1]
        assert (row.description, row.completed, row.total) == ("round 1 step 1: generate", 3, 8)
        bars.under_way("round 1 step 1: update")
        assert [(t.description, t.total) for t in bars.rich.tasks] == [("rl", 20), ("round 1 step 1: update", None)]
    assert [t.description for t in bars.rich.tasks] == ["rl"]


def test_a_log_has_every_line_and_a_full_disk_is_no_error(tmp_path):
    shown = Lines(StringIO())
    log = Logged(shown, tmp_path / "run.log", "mine")
    log.begin("round 1", 0, 4)
    log.advance(4, {"reward": 0.5})
    log.say("a\nb")
    log.under_way("generate", 1, 2)
    log.close()
    lines = [line.partition("] ")[2] for line in (tmp_path / "run.log").read_text().splitlines()]
    assert lines[0].startswith("mine starts as process ")
    assert lines[1:] == ["round 1: 4 steps", "round 1 4/4  reward 0.5", "a\\nb"]
    full = Logged(Progress(), Path("/dev/full"), "mine")
    full.say("a line that no disk takes")
    full.close()
