"""Verifiers from outside that exit, hang, flood or return nonsense: each costs the response that it was asked about."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.processes import PATIENCE_S, family, until
from verizero.pipeline.commands.verifiers.proof import check
from verizero.pipeline.commands.verify import verify
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers import _verifier_process
from verizero.verifiers.base import load, verifier

pytestmark = pytest.mark.run
FAULTS = {
    "exits": ("import sys; sys.exit(0)", "SystemExit: 0"),
    "quits": ("raise SystemExit", "SystemExit"),
    "interrupts itself": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "ends a generator": ("raise GeneratorExit", "GeneratorExit"),
    "raises what nobody catches": ("raise BaseException('odd')", "BaseException: odd"),
    "raises what has no text": ("raise Mute", "Mute"),
    "returns nothing": ("return None", "returned None; return a Verdict"),
    "returns a text": ("return '1.0'", "returned '1.0'"),
    "returns a list": ("return [1.0]", "returned [1.0]"),
    "returns what has no text": ("return Mute()", "ValueError"),
    "returns NaN": ("return float('nan')", "score nan is outside"),
    "returns infinity": ("return float('inf')", "score inf is outside"),
    "returns less than nothing": ("return -0.1", "score -0.1 is outside"),
    "returns a verdict of NaN": ("return Verdict('graded', float('nan'))", "score nan is outside"),
    "returns a verdict of no number": ("return Verdict('graded', None)", "score None is no number"),
    "returns an unknown status": ("return Verdict('fine', 1.0)", "status 'fine'"),
    "recurses for ever": ("return deeper(0)", "RecursionError"),
    "sleeps for ever": ("import time; time.sleep(1e6)", "no verdict within 2 s"),
    "never returns to Python": ("import re; re.match('(a+)+$', 'a' * 60 + 'b')", "no verdict within 2 s"),
    "ends its process": ("import os; os._exit(3)", "exit status 3"),
    "kills its process": ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
    "sets itself an alarm": ("import signal; signal.setitimer(signal.ITIMER_REAL, 0.01); signal.pause()", "SIGALRM"),
    "closes all files": ("import os; os.closerange(0, 99)", "ended its process"),
}
NO_LINE = ("returns", "ends its process", "kills", "sets itself", "closes")
"""Faults for which the line is that of the function, since nothing is raised and nothing hangs."""
HANGS = ("sleeps", "never returns")
OF_A_BATCH = ("exits", "raises what has no text", "sleeps for ever", "ends its process")
"""Faults that a batch is tried with, one of each way to give no answer."""
HEAD = """from verizero.verifiers.base import Attempt, Verdict, verifier

class Mute(Exception):
    def __str__(self):
        raise ValueError

    def __repr__(self):
        raise ValueError

def deeper(n):
    return deeper(n + 1)
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a verifier, which does a thing where the response is "bad", into the working folder; returns its path."""
    monkeypatch.chdir(tmp_path)

    def write(body):
        compared = "return attempt.response == attempt.reference"
        body = f"    if attempt.response == 'bad':\n        {body}\n    {compared}\n"
        (tmp_path / "mine.py").write_text(f"{HEAD}\n@verifier\ndef mine(attempt):\n{body}")
        return "mine.py:mine"

    return write


def bound(path, time_s=60.0):
    return load(path=path).bind(time_s=time_s)


def test_a_fault_costs_its_own_response_and_is_told_with_its_line(tmp_path):
    lines, places = HEAD.splitlines(), {}
    for name, head, responses, end in (
        ("mine", "@verifier", "[attempts.response]", "attempts.response == attempts.reference"),
        ("many", "@verifier(batch=True)", "[a.response for a in attempts]",
         "[a.response == a.reference for a in attempts]"),
    ):  # fmt: skip
        places[name] = len(lines) + 1
        lines += [head, f"def {name}(attempts):", f"    responses = {responses}"]
        for fault, (body, _) in FAULTS.items():
            lines += [f"    if {fault!r} in responses:", f"        {body}"]
            places[name, fault] = len(lines)
        lines.append(f"    return {end}")
    (tmp_path / "all.py").write_text("\n".join(lines))
    for name, fault in [("mine", f) for f in FAULTS] + [("many", f) for f in OF_A_BATCH]:
        asked = [Attempt("a", "a"), Attempt("b", "a"), Attempt(fault, "a"), Attempt("a", "a")]
        verdicts = bound(f"{tmp_path}/all.py:{name}", 2.0 if fault.startswith(HANGS) else 60.0).score(asked)
        statuses = [v.status for v in verdicts]
        assert statuses == ["graded", "graded", "verifier_error", "graded"], (name, fault, verdicts)
        assert [v.score for v in verdicts] == [1.0, 0.0, 0.0, 1.0]
        line = places[name] if fault.startswith(NO_LINE) else places[name, fault]
        line = {"recurses for ever": 11, "returns what has no text": 8}.get(fault, line)
        assert FAULTS[fault][1] in verdicts[2].reason, (name, fault)
        assert f"{tmp_path}/all.py:{line}" in verdicts[2].reason, (name, fault, verdicts[2])


def test_what_is_returned_well_is_taken(write):
    for value in ("True", "1", "0.5", "Verdict('no_answer')", "__import__('numpy').float32(0.5)"):
        verdict = bound(write(f"return {value}")).score([Attempt("bad", None)])[0]
        assert not verdict.is_infrastructure, value
        Path("mine.py").unlink()
        sys.modules.pop(next(m for m in sys.modules if m.startswith("verizero_plugin_mine")))


def test_prints_are_no_answers_and_floods_stop_nothing(write, capfd):
    body = "print('hello'); [print('x' * 999) for _ in range(20_000)]; return True"
    out = io.StringIO()
    row = json.dumps({"verifier": {"path": write(body)}, "reference": "a", "response": "bad"})
    assert verify([row] * 3, out).correct == 3
    assert [json.loads(line)["status"] for line in out.getvalue().splitlines()] == ["graded"] * 3
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "hello" in shown.err
    assert len(shown.err) < 2 * _verifier_process.MAX_PRINTED


def test_a_call_does_not_wait_for_each_of_many_that_hang(write):
    verdicts = bound(write("import time; time.sleep(1e6)"), 0.5).score([Attempt("bad", "a")] * 100)
    assert {v.status for v in verdicts} == {"verifier_error"}
    assert "not asked about after others: no verdict within 0.5 s" in verdicts[-1].reason


def test_the_operator_is_told_what_is_waited_for(write, monkeypatch, capsys):
    monkeypatch.setattr(_verifier_process, "SILENCE_S", 0.3)
    bound(write("import time; time.sleep(1e6)"), 1.5).score([Attempt("a", "a"), Attempt("bad", "a")])
    told = capsys.readouterr().err
    assert "mine.py:mine': 1 of 2 responses graded, waiting for" in told
    assert "1.5 s at most" in told


@pytest.mark.parametrize("before", ["", "import faulthandler, signal; faulthandler.unregister(signal.SIGUSR1); "])
def test_a_neighbour_that_hangs_costs_other_threads_nothing(before, write):
    """Also where the process dies of being asked for its stack."""
    grader = bound(write(f"{before}import time; time.sleep(1e6)"), 2.0)
    hung: list[Verdict] = []
    thread = threading.Thread(target=lambda: hung.extend(grader.score([Attempt("bad", "a")])))
    thread.start()
    while thread.is_alive():
        assert [v.score for v in grader.score([Attempt("a", "a"), Attempt("b", "a")])] == [1.0, 0.0]
        time.sleep(0.1)
    assert [v.status for v in hung] == ["verifier_error"]


def test_one_that_does_not_load_there_fails_on_every_response_at_once(write):
    grader = bound(write("return True"))
    Path("mine.py").write_text("raise SystemExit('changed')")
    verdicts = grader.score([Attempt("bad", "a")] * 3)
    assert [v.status for v in verdicts] == ["verifier_error"] * 3
    assert "changed" in verdicts[0].reason


@verifier
def interrupted(attempt):
    raise KeyboardInterrupt


@verifier
def exits(attempt):
    sys.exit(1)


def test_without_a_file_to_load_the_code_runs_here_and_ctrl_c_passes():
    verdict = exits.bind().score([Attempt("a", "a")])[0]
    assert verdict.status == "verifier_error"
    assert "test_wall.py:" in verdict.reason
    with pytest.raises(KeyboardInterrupt):
        interrupted.bind().score([Attempt("a", "a")])


@pytest.mark.parametrize("body", ["import sys; sys.exit(0)", "return None", "import time; time.sleep(1e6)"])
def test_a_check_names_the_row_and_the_line(body, write, tmp_path):
    write(body)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"reference": "a", "accept": ["a"], "refuse": ["b", "bad"]}\n')
    report = check("mine", rows, base=tmp_path, time_s=0.1)
    assert not report.passed
    assert "mine.py:" in str(report)
    assert "line 1: 'bad': verifier_error" in str(report)


def test_a_real_ctrl_c_stops_a_command_that_waits(write, tmp_path):
    row = json.dumps({"verifier": {"path": write("import time; time.sleep(1e6)")}, "reference": "a", "response": "bad"})
    (tmp_path / "rows.jsonl").write_text(row + "\n")
    command = [sys.executable, "-m", "verizero.pipeline.cli", "verify", "rows.jsonl"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: len(family(process.pid)) > 1, "the process of the verifier")
    everyone = family(process.pid)
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=PATIENCE_S)[1].count("stopped") == 1
    assert process.returncode == 130
    until(lambda: not any(os.path.exists(f"/proc/{p}") for p in everyone), "the end of both")
