"""Children are our own programs in any folder, and end with their parent however it ends, with what they started."""

import os
import re
import signal
import subprocess
import sys

import pytest

from tests.processes import alive, until
from tests.source import code_files, relative
from verizero.pipeline.host import child
from verizero.pipeline.host.child import SAFE_PATH, leave_safe_path, module_command

FAMILY = """
import os, subprocess, sys, time
print(os.getpid(), flush=True)
subprocess.Popen([sys.executable, "-S", "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"])
time.sleep(600)
"""
"""A program that starts another; each writes its number."""
OWNER = f"""
import sys, time
from pathlib import Path
from verizero.pipeline.host.child import start, watched
command = [sys.executable, "-S", "-c", {FAMILY!r}]
HOW
time.sleep(600)
"""
FLAGS = [sys.executable, "-S", "-c"]


def numbers(log, count):
    until(lambda: len(child.last_lines(log)) == count, "the programs' numbers", every_s=0.02)
    return [int(line) for line in child.last_lines(log)]


@pytest.mark.run
@pytest.mark.parametrize(
    ("how", "ending", "num_left"),
    [
        ("start(watched(command), log=Path(sys.argv[1]))", signal.SIGKILL, 0),
        ("start(watched(command), log=Path(sys.argv[1]))", signal.SIGTERM, 0),
        ("start(command, log=Path(sys.argv[1]), dies=True)", signal.SIGKILL, 1),
    ],
)
def test_a_child_ends_with_its_parent(how, ending, num_left, tmp_path):
    """And what it started too, where it is watched."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER.replace("HOW", how), str(tmp_path / "log")])
    family = numbers(tmp_path / "log", 2)
    assert alive(family) == set(family)
    owner.send_signal(ending)
    owner.wait()
    until(lambda: len(alive(family)) == num_left, "the end of the family")
    for left in alive(family):
        assert left == family[1]
        os.kill(left, signal.SIGKILL)


@pytest.mark.run
def test_what_a_child_started_ends_with_it_and_each_has_the_time_of_all(tmp_path, monkeypatch):
    """Also where the child itself has ended long ago, and where it does not hear the signal."""
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    gone = FAMILY.replace("time.sleep(600)\n", "sys.exit(3)\n")
    codes = {"heard": FAMILY, "deaf": deaf + FAMILY, "also": deaf + FAMILY, "gone": gone}
    logs = {name: tmp_path / name for name in codes}
    children = {name: child.start([*FLAGS, code], log=logs[name]) for name, code in codes.items()}
    families = {name: numbers(log, 2) for name, log in logs.items()}
    assert child.ends_within(children["gone"], 60)
    assert child.status_of(children["gone"]) == 3
    everybody = [number for family in families.values() for number in family]
    assert alive(everybody) == {*everybody} - {children["gone"].pid}
    waits, plain = list[float](), child.ends_within

    def ends_within(one, seconds):
        waits.append(seconds)
        return plain(one, seconds)

    monkeypatch.setattr(child, "ends_within", ends_within)
    child.end(*children.values(), grace_s=5.0)
    assert max(waits[:2]) > 0 >= max(waits[2:]), "the first deaf child has used the time of both"
    statuses = {name: process.returncode for name, process in children.items()}
    assert statuses == {"heard": -signal.SIGTERM, "deaf": -signal.SIGKILL, "also": -signal.SIGKILL, "gone": 3}
    until(lambda: not alive(everybody), "the end of all")
    child.end(*children.values())  # a second time does nothing


def test_a_child_that_is_not_ready_is_quoted(tmp_path):
    log = tmp_path / "log"
    log.write_text("of an earlier one\n")
    begin, talk = child.size_of(log), "for i in range(20): print('line', i, flush=True)\n"
    ended = child.start([*FLAGS, talk + "raise SystemExit(7)"], log=log)
    with pytest.raises(
        child.NotReady, match=r"^ended with status 7; .*log ends:\nline 5\n(line \d+\n)+line 19$"
    ) as seen:
        child.wait_until(lambda: False, ended, log, 60)
    assert seen.value.status == 7
    assert child.appended(log, begin).decode().splitlines() == [f"line {i}" for i in range(20)]
    slow = child.start([*FLAGS, "import time; print('loading', flush=True); time.sleep(600)"], log=log)
    until(lambda: child.last_lines(log, 1) == ["loading"], "its line")
    with pytest.raises(
        child.NotReady, match=r"^did not answer within 0\.3 s; .*log ends:\n(line \d+\n)+loading$"
    ) as seen:
        child.wait_until(lambda: False, slow, log, 0.3)
    assert seen.value.status is None
    child.wait_until(lambda: True, slow, log, 0.0)
    child.end(slow, ended)


def test_another_that_answers_is_not_taken_for_a_child_that_ended(tmp_path):
    ended = child.start([*FLAGS, "raise SystemExit(1)"], log=tmp_path / "log")
    assert child.ends_within(ended, 60)
    with pytest.raises(child.NotReady, match="status 1"):
        child.wait_until(lambda: True, ended, tmp_path / "log", 60)
    child.end(ended)


def test_lines_come_whole_in_time_or_not_at_all():
    """A piece of a line is kept until its end comes, and two that come at once are two."""
    code = (
        "import sys, time\nfor line in sys.stdin:\n"
        "    a, b = line.split()\n    sys.stdout.write(a); sys.stdout.flush(); time.sleep(0.3)\n"
        "    sys.stdout.write(b + '\\nsecond\\n'); sys.stdout.flush()\n"
    )
    asked = child.start([*FLAGS, code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    lines = child.Lines(asked)
    lines.send("one two")
    seen = []
    while (line := lines.next(0.05)) is None:
        seen.append(line)
    assert len(seen) >= 2
    assert (line, lines.next(60), lines.next(0)) == (b"onetwo\n", b"second\n", None)
    asked.stdin.close()
    assert lines.next(60) == b""
    child.end(asked)
    child.close_pipes(asked)


HELPER = """
import json, os, sys, time
print("ready", flush=True)
for line in sys.stdin:
    what = json.loads(line)["what"]
    if what == "end":
        sys.exit(3)
    if what == "sleep":
        time.sleep(600)
    print(what or json.dumps([os.getpid(), os.getcwd(), os.environ.get("OWN"), "HOME" in os.environ]), flush=True)
"""


def test_a_helper_is_replaced_when_it_ends_or_is_silent_or_belongs_to_another_process():
    def ask(what="", timeout_s=60):
        return helper.ask({"what": what}, timeout_s)

    helper = child.Helper([*FLAGS, HELPER], {"OWN": "given"}, 60)
    pids = [(reply := ask())[0]]
    assert reply[1:] == ["/", "given", False]
    for what, timeout_s, reason in (("end", 60, "ended"), ("sleep", 0.2, "was silent for 0 s"), ("{", 60, "no JSON")):
        with pytest.raises(OSError, match=reason):
            ask(what, timeout_s)
        pids.append(ask()[0])
    with pytest.raises(OSError, match="cannot be asked: keys must be"):
        helper.ask({"what": {(): 1}}, 60)
    assert len(set(pids)) == 4
    assert alive(pids) == {pids[-1]}
    copy = os.fork()
    if copy == 0:
        try:
            own = ask()[0]
            helper.close()
            os._exit(0 if own not in pids else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) == 0
    assert ask()[0] == pids[-1], "the copy's was another"
    helper.close()
    assert not alive(pids)
    with pytest.raises(OSError, match="did not start"):
        child.Helper([*FLAGS, ""], {}, 60).ask({}, 60)


def test_a_watched_program_has_limits_and_leaves_its_status(tmp_path):
    code = "import resource; print(*resource.getrlimit(resource.RLIMIT_CPU), resource.getrlimit(resource.RLIMIT_AS)[0])"
    options = ["--cpu-s=7", "--memory-mib=512", f"--status={tmp_path / 'status'}"]
    watched = child.start(child.watched([*FLAGS, code + "\nraise SystemExit(4)"], *options), log=tmp_path / "log")
    assert child.ends_within(watched, 60)
    child.end(watched)
    assert (tmp_path / "status").read_text() == "4"
    assert child.last_lines(tmp_path / "log") == [f"7 8 {512 << 20}"]


NAMES = ("flows", "pipeline", "verifiers", "sandbox", "json", "random", "typing", "logging", "prefect", "torch", "yaml")


@pytest.fixture
def folder(tmp_path):
    """A working folder in which each of the names is a file that cannot be imported."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the working folder was imported')\n")
    return tmp_path


@pytest.mark.run
def test_a_module_is_ours_whatever_the_working_folder_has(folder):
    done = subprocess.run([*module_command("verizero.pipeline.seeds")], cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_all_our_modules_are_started_by_that_command():
    plain = re.compile(r'sys\.executable[^\n]*"-m"')
    assert [p for p in code_files() if relative(p) != "pipeline/host/child.py" and plain.search(p.read_text())] == []


def test_children_begin_in_one_place():
    """But for programs that are waited for where they are started, and the sandbox, which knows nothing of ours."""
    begun = re.compile(r"\bPopen\(")
    files = [relative(p) for p in code_files() if begun.search(p.read_text())]
    assert files == ["pipeline/host/child.py", "sandbox/process.py"]


def test_programs_of_the_user_import_what_lies_next_to_them(monkeypatch, tmp_path):
    monkeypatch.setenv(SAFE_PATH, "1")
    leave_safe_path()
    (tmp_path / "agent.py").write_text("import parts; print(parts.X)")
    (tmp_path / "parts.py").write_text("X = 3")
    done = subprocess.run([sys.executable, "agent.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "3\n"
