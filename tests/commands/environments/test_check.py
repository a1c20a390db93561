"""The check finds what makes an environment unfit, and passes those that ship."""

import re
import subprocess
import sys

import pytest

from tests.processes import others
from tests.source import ROOT
from verizero.pipeline.cli import main
from verizero.pipeline.commands import environment as check_module
from verizero.pipeline.commands.environment import check
from verizero.pipeline.errors import DataError
from verizero.pipeline.host.child import family_of
from verizero.pipeline.scoring.sandbox_setup import close_sandbox

BAD = """
import itertools, os, sqlite3, subprocess, sys, threading
from verizero.pipeline.environments.base import EnvironmentParams, Reply, Start
from verizero.pipeline.types import Message, Prompt, Verdict

class Params(EnvironmentParams):
    fault: str = ""

COUNT = itertools.count()

class Bad:
    def __init__(self, params, prompt, task_seed, sample_seed):
        self.fault, self.held, self.closed, self.turns = params.fault, None, False, 0
        if params.fault == "descriptor": self.held = os.open("/dev/null", os.O_RDONLY)
        if params.fault == "thread":
            self.held = threading.Event()
            threading.Thread(target=self.held.wait, daemon=True).start()
        if params.fault == "process":
            silent = subprocess.DEVNULL  # the test waits for whatever holds its pipes
            self.held = subprocess.Popen(["sleep", "60"], stdout=silent, stderr=silent)
        if params.fault == "admits": self.deterministic = False
    def start(self): return Start()
    def step(self, message):
        self.turns += 1
        if self.fault == "length" and len(message.content) > 1000: raise OSError("too long")
        if self.fault == "control" and "\\x00" in message.content: raise RuntimeError("a zero")
        if self.fault == "score": return Reply(done=True, outcome=Verdict("graded", 2.0))
        if self.fault == "silent": return Reply()
        if self.turns == 3: return Reply(done=True, outcome=Verdict("graded", 1.0))
        words = f"try {next(COUNT)}" if self.fault in ("counts", "admits") else "again"
        return Reply((Message("user", words),))
    def close(self):
        if self.fault == "twice" and self.closed: raise RuntimeError("closed already")
        self.closed = True

def bad(params: Params, prompt: Prompt, task_seed: int, sample_seed: int):
    return Bad(params, prompt, task_seed, sample_seed)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("environments")
    (made / "bad.py").write_text(BAD)
    return made


def own_family(pid):
    """The process and those below it, but the one that all tests fork (`tests.warm`) and its forks of other tests."""
    family = family_of(pid)
    shared = {each for each, words, _ in others() if each in family and "tests.warm" in words}
    while more := {each for each, stat in family.items() if int(stat[1]) in shared and each not in shared}:
        shared |= more
    return family.keys() - shared


@pytest.fixture(autouse=True)
def counts_its_own(monkeypatch):
    monkeypatch.setattr(check_module, "family_of", own_family)


@pytest.fixture
def short_rest(monkeypatch):
    """Shorten the wait for the end of processes: these episodes start none, and a sandbox of other tests is closed."""
    close_sandbox()
    monkeypatch.setattr(check_module, "REST_S", 0.1)


def failed(report):
    return [f.name for f in report.findings if not f.passed]


@pytest.mark.usefixtures("short_rest")
@pytest.mark.parametrize(
    ("fault", "names"),
    [
        ("", []),
        ("admits", []),
        ("descriptor", ["close leaves nothing open"]),
        ("thread", ["close leaves nothing open"]),
        ("counts", ["equal seeds give equal transcripts", "also with 8 threads at a time"]),
        ("length", ["hostile messages are answered"]),
        ("control", ["hostile messages are answered"]),
        ("score", ["episodes end without a failure", "hostile messages are answered"]),
        ("silent", ["episodes end without a failure", "hostile messages are answered"]),
        ("twice", ["episodes end without a failure"]),
    ],
)
def test_each_fault_is_found_and_nothing_else(folder, fault, names):
    report = check("bad.py:bad", {"fault": fault}, episodes=20, base=folder)
    assert failed(report) == names, str(report)
    assert report.passed == (not names)


def test_what_ends_a_moment_later_is_not_left(monkeypatch):
    counts = iter([3, 4, 4, 2])
    monkeypatch.setattr(check_module, "_num_open", lambda: {"processes": next(counts, 2)})
    assert check_module._num_open_at_rest({"processes": 2}) == {"processes": 2}
    monkeypatch.setattr(check_module, "_num_open", lambda: {"processes": 3})
    assert check_module._num_open_at_rest({"processes": 2}) == {"processes": 3}


@pytest.mark.run
def test_processes_that_are_left_are_found(folder):
    """In a process of its own: a process that an earlier test left may end meanwhile, which hides one of these."""
    code = (
        "from pathlib import Path; from verizero.pipeline.commands.environment import check\n"
        f"print(check('bad.py:bad', {{'fault': 'process'}}, episodes=2, base=Path({str(folder)!r})))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "2 more processes after 2 episodes" in done.stdout


@pytest.mark.usefixtures("short_rest")
@pytest.mark.parametrize("name", ["guess", "sql"])
def test_the_environments_that_ship_pass(name):
    report = check(name, episodes=20)
    assert report.passed, str(report)
    assert len(report.seconds) >= 20


@pytest.mark.run
@pytest.mark.parametrize(("name", "params"), [("repair", {}), ("tool_use", {"tools": ["python", "shell"]})])
@pytest.mark.nightly
def test_those_that_run_programs_pass(name, params):
    report = check(name, params, episodes=2)
    assert report.passed, str(report)


@pytest.mark.usefixtures("short_rest")
def test_rows_are_played(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "q", "answer": 40}\n')
    report = check("guess", {"high": 50}, rows, episodes=4)
    assert report.passed, str(report)
    report = check("guess", {}, rows, episodes=4)
    assert failed(report) == ["episodes end without a failure"]
    assert "expected a number from 1 to 32, got 40" in str(report)
    for text in ("", "x\n", '{"answer": 1}\n', "[]\n"):
        rows.write_text(text)
        with pytest.raises(DataError, match=re.escape(str(rows))):
            check("guess", {}, rows)


@pytest.mark.usefixtures("short_rest")
def test_the_command(capsys, folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert main(["environment", "--check", "guess", "--params", '{"tries": 2}', "--episodes", "5"]) == 0
    assert "all checks passed" in capsys.readouterr().out
    assert main(["environment", "--check", "bad.py:bad", "--params", '{"fault": "silent"}', "--episodes", "5"]) == 1
    assert "NOT FIT" in capsys.readouterr().out
    for params, words in (("x", "--params"), ("[1]", "expected an object"), ('{"trys": 1}', "did you mean tries")):
        assert main(["environment", "--check", "guess", "--params", params]) == 1
        assert words in capsys.readouterr().err
    assert main(["environment", "--check", "gues"]) == 1
    assert "did you mean guess" in capsys.readouterr().err
    assert main(["environment", "--check", "guess", "--episodes", "0"]) == 1
