"""Sessions: what they keep, how they are counted and lost, and that no client harms the sessions of others."""

import contextlib
import marshal
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.processes import alive
from tests.sandbox.across import open_session, pool_children, within
from tests.sandbox.processes import descendants, wait_gone, wait_until
from tests.source import ROOT
from verizero import sandbox
from verizero.pipeline.errors import IsolationError, SessionError
from verizero.sandbox import keepers
from verizero.sandbox.process import WorkerDied

pytestmark = pytest.mark.run  # workers of the sandbox

ODD = ["\ud800", "x" * 100_000, "/".join("d" * 3000), "", "..", "'", "\n"]
"""Texts that a policy may write."""


@pytest.fixture
def session(tools):
    with open_session(tools) as made:
        yield made


def keeper_pid(tools):
    return tools.keeper().worker.process.pid


def test_variables_files_and_imports_stay(session):
    assert session.python("import json\nx = [1]\ndef f(): return json.dumps(x)").passed
    assert session.python("x.append(2); open('a', 'w').write(f())").passed
    assert session.python("print(open('a').read(), f())").stdout == "[1, 2] [1, 2]\n"


def test_the_shell_keeps_folder_and_environment_and_shares_the_files(session):
    session.python("import os; os.mkdir('in'); open('in/a.txt', 'w').write('hey')")
    assert session.shell("cd in; export A='x y'; B=2").passed
    assert session.shell("cat a.txt; echo $A-$B; echo made > b.txt").stdout == "heyx y-\n"
    assert session.python("print(open('in/b.txt').read())").stdout == "made\n\n"
    failed = session.shell("echo no >&2; cd ..; exit 3")
    assert (failed.status, failed.stderr, failed.error) == ("runtime_error", "no\n", "no\nexit code 3")
    assert session.shell("ls").stdout == "in\n", "the folder of a line that failed is kept too"


def test_a_result_has_status_output_seconds_and_level(session):
    fine = session.python(
        "import time, sys\nt = time.process_time()\nwhile time.process_time() < t + 0.1: pass\n"
        "print('a'); print('b', file=sys.stderr)"
    )
    assert (fine.status, fine.stdout, fine.stderr, fine.error) == ("passed", "a\n", "b\n", "")
    assert fine.level == session.level
    assert 0.08 <= fine.cpu_s < 60
    assert fine.wall_s >= fine.cpu_s * 0.9
    raised = session.python("def g():\n    return 1 / 0\ng()")
    assert raised.status == "runtime_error"
    assert raised.error.splitlines()[-2:] == ["ZeroDivisionError: division by zero", "exit code 1"]
    assert "return 1 / 0" in raised.error
    assert "/sandbox/" not in raised.error, "no line of the harness"
    assert session.python("print(1 +").status == "runtime_error"
    assert session.python("import sys; sys.exit(0)").passed
    assert "exit code 7" in session.python("import sys; sys.exit(7)").error
    assert session.python("b = bytearray(10 ** 10)").status == "memory_limit"
    flood = session.python("while True: print('x' * 10000)")
    assert (flood.status, len(flood.stdout), flood.interpreter_ended) == ("output_limit", 256 << 10, False)
    assert session.shell("yes").status == "output_limit"
    assert session.python("print(g.__name__)").stdout == "g\n", "an error ends the cell and nothing else"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("while True: pass", "cpu_limit"),
        ("import time; time.sleep(60)", "timeout"),
        ("import os; os._exit(3)", "runtime_error"),
        ("import os; os._exit(0)", "passed"),
        ("import ctypes; ctypes.string_at(0)", "runtime_error"),
    ],
)
def test_a_call_over_its_limits_ends_the_interpreter_and_not_the_session(tools, code, status):
    with open_session(tools) as session:
        session.python("x = 1; open('kept', 'w').write('k')")
        # Time is short only for a call that must run into it.
        result = within(session, code, wall_s=0.4 if status == "timeout" else 60, cpu_s=0.2)
        assert (result.status, result.interpreter_ended) == (status, True)
        assert session.python("print(open('kept').read(), 'x' in globals())").stdout == "k False\n"


def test_disk_is_bounded(session):
    full = session.python(
        "f = open('f', 'wb')\nfor i in range(20):\n  f.write(b'x' * (1 << 20)); f.flush()\nimport time; time.sleep(0.2)"
    )
    assert full.status == "runtime_error"
    many = session.python("for i in range(2100): open(f'g{i}', 'w').close()\nimport time; time.sleep(0.2)")
    assert many.status == "runtime_error"


def test_the_calls_of_a_life_and_their_texts_are_bounded(tools):
    with open_session(tools, calls=2) as session:
        with pytest.raises(ValueError, match="at most"):
            session.python("#" * 200_000)
        assert session.python("1").passed
        assert session.shell("true").passed
        over = session.python("print(1)")
        assert (over.status, over.stdout, over.error) == ("runtime_error", "", "used up: 2 calls of 2")


def test_equal_calls_give_equal_bytes(tools):
    calls = (
        "import random; print(random.random(), hash('a'), {'b', 'a', 'c'})",
        "print(object(), id([]), random.random())",
        "class A: pass\nprint({A(): 1 for _ in range(3)}, A())",
        "1 / 0",
    )
    outputs = []
    for _ in range(2):
        with open_session(tools) as session:
            results = [session.python(code) for code in calls]
            outputs.append([(r.status, r.stdout, r.stderr) for r in results])
    assert outputs[0] == outputs[1]
    with sandbox.Pool(workers=1, walls=tools._walls) as other, open_session(other) as session:
        results = [session.python(code) for code in (calls[0], calls[3])]
        expected = [outputs[0][0], (*outputs[0][3][:2], outputs[0][3][2].replace("cell-4", "cell-2"))]
        assert [(r.status, r.stdout, r.stderr) for r in results] == expected, "in another keeper too, without addresses"


def test_more_sessions_than_allowed_are_refused(monkeypatch):
    monkeypatch.setitem(keepers.BOUNDS, "sessions", 2)
    with sandbox.Pool(workers=1) as pool:
        with open_session(pool), open_session(pool), pytest.raises(IsolationError, match="2 sessions are open"):
            open_session(pool)
        with pytest.raises(ValueError, match="no shell"), open_session(pool) as session:
            session.shell("true")
        with open_session(pool), open_session(pool) as second:
            os.kill(keeper_pid(pool), signal.SIGSTOP)
            third = ThreadPoolExecutor(1).submit(open_session, pool)
            time.sleep(0.2)
            second.close()
            os.kill(keeper_pid(pool), signal.SIGCONT)
            with third.result() as session:
                assert session.python("1").passed, "a session that is closed takes no place, whichever is read first"


def test_an_order_during_a_call_ends_its_session_alone(tools):
    with open_session(tools) as other, open_session(tools) as session:
        connection = session._connection
        for code in ("import time; time.sleep(60)", "print(1)"):
            connection.sock.send(marshal.dumps({"do": "python", "text": code, "wall_s": 60.0, "cpu_s": 60.0}, 2))
        with pytest.raises(WorkerDied):
            connection.answer()
        assert other.python("print(2)").stdout == "2\n"


@pytest.mark.parametrize("victim", ["keeper", "interpreter asleep", "interpreter at work"])
def test_a_session_that_is_killed_is_lost_and_says_so(tools, victim):
    with open_session(tools) as session:
        session.python("x = 1")
        keeper = keeper_pid(tools)
        (asleep,) = pool_children(keeper)
        if victim == "interpreter at work":
            if session.level < 3 or os.geteuid() != 0:
                pytest.skip("only root sees into namespaces, without which a program can kill itself")
            called = ThreadPoolExecutor(1).submit(within, session, "import time; time.sleep(60)", wall_s=60)
            assert wait_until(lambda: _sleeps(asleep))
            os.kill(asleep, signal.SIGKILL)
            with pytest.raises(
                SessionError, match="the session is lost, with its files and variables: its program was"
            ):
                called.result()
        else:
            pid = keeper if victim == "keeper" else asleep
            os.kill(pid, signal.SIGKILL)
            assert wait_until(lambda: not alive([pid])), "the pool waits for its keeper when it is next asked"
        for _ in range(2):
            with pytest.raises(SessionError, match="the session is lost"):
                session.python("print(x)")
        with open_session(tools) as another:
            assert another.python("print(2)").stdout == "2\n", "the next session is fine"


def _sleeps(pid):
    """True if the process is in a clock's sleep."""
    try:
        return "nanosleep" in Path(f"/proc/{pid}/wchan").read_text() or Path(
            f"/proc/{pid}/syscall"
        ).read_text().startswith("230 ")
    except OSError:
        return False


def test_calls_of_different_sessions_do_not_wait_for_each_other(walls):
    with sandbox.Pool(workers=1, walls=walls) as pool, open_session(pool) as slow, open_session(pool) as quick:
        call = ThreadPoolExecutor(1).submit(within, slow, "import time; time.sleep(3600)", wall_s=3600)
        for _ in range(5):
            assert quick.python("print(1)").passed
        assert not call.done()
        os.kill(keeper_pid(pool), signal.SIGKILL)
        with pytest.raises(SessionError):
            call.result()


def test_a_session_belongs_to_its_process(session):
    session._owner_pid = -1
    with pytest.raises(SessionError, match="process that opened it"):
        session.python("1")
    session._owner_pid = os.getpid()
    session.close()
    session.close()
    with pytest.raises(SessionError, match="closed"):
        session.python("1")


_OWNER = """
import sys, time
from verizero import sandbox
pool = sandbox.Pool(workers=1, walls=sys.argv[1].split(","), tools=sandbox.TOOLS)
sessions = [sandbox.Session(pool, limits=sandbox.Limits(wall_s=60)) for _ in range(3)]
for s in sessions: s.python("import threading; threading.Thread(target=threading.Event().wait).start()")
print(pool.keeper().worker.process.pid, flush=True)
sessions[0].shell("sleep 60 & sleep 60")
"""


def test_kill_9_of_the_owner_leaves_nothing(tools):
    command = [sys.executable, "-c", _OWNER, ",".join(tools._walls)]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert owner.stdout is not None
    keeper = int(owner.stdout.readline())
    assert wait_until(lambda: len(descendants(keeper)) >= 8)
    pids = [keeper, *descendants(keeper)]
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert wait_gone(pids) == []


def test_odd_texts_end_no_other_session(tools):
    with open_session(tools) as other:
        assert other.python("x = 41").passed
        keeper = tools.keeper()
        for text in ODD:
            for kind in ("python", "shell"):
                with open_session(tools) as session, contextlib.suppress(SessionError):
                    getattr(session, kind)(text)
        assert tools.keeper() is keeper
        assert other.python("print(x + 1)").stdout == "42\n"


def test_a_session_that_cannot_begin_ends_no_other(tools):
    with open_session(tools) as other:
        if other.level < 3:
            pytest.skip("without namespaces a session mounts no file system, which is what fails here")
        assert other.python("x = 41").passed
        with pytest.raises(IsolationError, match="the session could not begin"):
            tools.keeper().open({"limits": (1.0, 1.0, 64, 64, 8), "disk_mib": "no number"})
        assert other.python("print(x + 1)").stdout == "42\n"
