"""Forks by live copies: equal to forks by repeated calls, behind the same walls, and repeated where no copy is safe."""

# ruff: noqa: E501  (one program, one line)

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sandbox import across, kin
from tests.sandbox.processes import descendants, wait_gone, wait_until
from verizero import sandbox
from verizero.pipeline.errors import IsolationError

pytestmark = pytest.mark.integration  # workers of the sandbox

LEVEL_2 = ["landlock", "seccomp", "uid"]
Call = tuple[Literal["python", "shell", "write"], str]
CALLS: tuple[Call, ...] = (
    ("python", "x = globals().get('x', 0) + 1; print('x', x)"),
    ("python", "import random; print(random.random(), random.getrandbits(70))"),
    (
        "python",
        "import os; os.makedirs('d/e', exist_ok=True); os.chdir('d'); print(os.getcwd(), sorted(os.listdir('.')))",
    ),
    (
        "python",
        "open('f', 'a').write('line\\n'); print(open('f').read(), os.listdir('.') if 'os' in globals() else '')",
    ),
    (
        "python",
        "class A:\n  def __init__(self): self.v = []\na = A(); a.v.append(id); print(len(a.v), hash('a'), {'a', 'b'})",
    ),
    ("python", "def g():\n  for i in range(9): yield i\nit = globals().get('it') or g(); print(next(it, None))"),
    (
        "python",
        "import json, re, collections; c = collections.Counter('abca'); print(json.dumps(c), re.findall('a', 'aba'))",
    ),
    ("python", "1 / 0"),
    ("python", "import sys; print('err', file=sys.stderr); sys.exit(3)"),
    ("python", "print('no newline', end='')"),
    (
        "python",
        "import sys; sys.stdout.write('kept'); sys.setrecursionlimit(500)\ndef r(n): return n and r(n - 1)\nprint(r(100))",
    ),
    (
        "python",
        "import signal; signal.signal(signal.SIGUSR1, lambda *a: print('hit'))\nimport os; os.kill(os.getpid(), 10)",
    ),
    (
        "python",
        "import os, uuid; os.umask(0o077); os.environ['E'] = 'v'; print(os.getpid(), os.getppid(), os.getuid(), os.environ['E'])",
    ),
    ("python", "import threading\nt = threading.Thread(target=print, args=('in a thread',)); t.start(); t.join()"),
    ("python", "big = [i * i for i in range(20000)]; print(sum(big))"),
    ("python", "import decimal, datetime; print(decimal.Decimal(1) / 7, datetime.date(2020, 1, 1))"),
    ("python", "import os; os._exit(0)"),
    ("shell", "echo $E; export E=w; mkdir -p s; cd s; echo here > h; pwd"),
    ("shell", "ls; exit 2"),
    ("write", "w/file"),
)
"""Calls whose answers do not depend on a clock, the kernel's random bytes, or the place of files on a disk."""


@pytest.fixture(scope="module", params=[list(sandbox.WALLS), LEVEL_2], ids=["level3", "level2"])
def pool(request: pytest.FixtureRequest) -> Iterator[sandbox.Pool]:
    with sandbox.Pool(workers=1, walls=request.param, tools=sandbox.TOOLS) as made:
        yield made


@pytest.fixture(scope="module")
def strong() -> Iterator[sandbox.Pool]:
    """A pool of level 3, where live copies are made."""
    with sandbox.Pool(workers=1, tools=sandbox.TOOLS) as made:
        if made.keeper().level < 3:
            pytest.skip("needs level 3")
        yield made


def do(session: sandbox.Session, call: Call) -> tuple[str, ...]:
    """Do a call and return what its caller sees of it, but for times."""
    kind, text = call
    if kind == "write":
        session.write(text, "data")
        return ()
    result = session.python(text) if kind == "python" else session.shell(text)
    return (result.status, result.stdout, result.stderr, result.error, str(result.interpreter_ended))


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    before=st.lists(st.sampled_from(CALLS), max_size=7), after=st.lists(st.sampled_from(CALLS), min_size=1, max_size=5)
)
def test_a_live_copy_goes_on_as_repeated_calls_do(strong: sandbox.Pool, before: list[Call], after: list[Call]) -> None:
    answers = []
    for live in (True, False):
        with across.open_session(strong, seed=3) as session:
            seen = [do(session, call) for call in before]
            (fork,) = session.fork(1, live=live)
            alive = session.forked["live"]
            with fork:
                seen += [do(fork, call) for call in after]
                (again,) = fork.fork(1, live=live)  # a copy of a copy, and then the sessions themselves
                with again:
                    seen += [do(one, call) for one in (again, fork, session) for call in after]
                    packed = [one.snapshot().digest for one in (again, fork, session)]
                fork.fold()  # what began as a copy can be repeated too
                seen += [do(fork, after[0])]
        answers.append((seen, packed))
        assert not (alive and not live)
    assert answers[0] == answers[1]


def test_forks_are_live_where_an_interpreter_is(pool: sandbox.Pool) -> None:
    with across.open_session(pool) as session:
        (fork,) = session.fork(1)
        fork.close()
        assert session.forked == {"no interpreter": 1}
        session.python("import time; t = time.time_ns(); print(t)")
        if pool.keeper().level < 3:
            return
        made = session.fork(3)
        assert session.forked == {"no interpreter": 1, "live": 3}
        shown = {one.python("print(t)").stdout for one in [*made, session]}
        assert len(shown) == 1, "a clock that was shown is no obstacle"
        for one in made:
            one.close()


def test_a_copy_takes_no_time_of_its_calls(strong: sandbox.Pool) -> None:
    with across.open_session(strong) as session:
        session.python("import time; time.sleep(1.5); x = 1")
        begun = time.monotonic()
        forks = session.fork(3)
        assert time.monotonic() - begun < 1.5, "the calls were not repeated"
        assert [fork.python("print(x)").stdout for fork in forks] == ["1\n"] * 3
        for fork in forks:
            fork.close()


def test_what_cannot_be_copied_is_repeated_and_counted(strong: sandbox.Pool) -> None:
    reasons = {
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()": "it has other threads",
        "f = open('f', 'w')": "it has open files or has closed its streams",
        "import mmap; m = mmap.mmap(-1, 4096)": "it has files or shared memory mapped",
        "import signal; signal.signal(14, print); signal.alarm(100)": "a timer runs",
    }
    for code, reason in reasons.items():
        with across.open_session(strong) as session:
            session.python(code)
            (fork,) = session.fork(1)
            with fork:
                assert session.forked == {reason: 1}
                assert fork.python(f"print({code.count('f =') and 'f.name'!r})").passed
    with across.open_session(strong) as session:
        session.python("f = open('f', 'w')")
        session.fork(1)[0].close()
        session.python("f.close()")
        session.fork(1)[0].close()
        assert session.forked["live"] == 1, "an obstacle that is gone is none"


def test_copies_of_copies_end_at_the_bound(strong: sandbox.Pool) -> None:
    with across.open_session(strong) as session:
        line, ways = [session], []
        session.python("x = 0")
        for number in range(15):
            line += line[-1].fork(1)
            ways += list(line[-2].forked)
            assert line[-1].python("x += 1; print(x)").stdout == f"{number + 1}\n"
        assert ways.count("live") == 14
        assert ways[12] == "a copy of a copy, 12 times"
        assert session.python("print(x)").stdout == "0\n"
        for fork in line[1:]:
            fork.close()


def test_killed_copies_and_templates_lose_nothing(strong: sandbox.Pool) -> None:
    keeper = strong.keeper().worker.process.pid
    with across.open_session(strong) as session:
        session.python("x = 1")
        (fork,) = session.fork(1)
        fork.python("x += 1")
        os.kill(kin.process_of(fork), signal.SIGKILL)
        wait_until(lambda: len(across.pool_children(keeper)) < 1, 10)
        assert fork.python("print(x)").stdout == "2\n", "killed in its sleep by nobody that we know of"
        assert session.python("print(x)").stdout == "1\n"
        (fork2,) = session.fork(1)
        templates = [p for p in descendants(keeper) if across._state(p) == "t"]
        outer, inner = templates
        os.kill(outer, signal.SIGKILL)  # with all that was copied of it
        # The kernel ends the inner one a moment later. Until then a copy can be made of it, which ends with it.
        assert wait_until(lambda: across._state(inner) in ("Z", "X", ""), 10)
        assert [one.python("print(x)").stdout for one in (session, fork2)] == ["1\n", "1\n"]
        session.fork(1)[0].close()
        assert session.forked["live"] == 3, session.forked
        for one in (fork, fork2):
            one.close()
        assert wait_gone(templates) == []


KILLED_IN_THE_ACT = """
import os, signal, socket, time, types
from verizero.sandbox.worker import clones, interpreters, kernel, tracing

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
pid = kernel.fork(kernel.CLONE_LIVE)  # the first process of its namespace: it cannot end before all others there
if pid == 0:
    while True: time.sleep(60)
cell = types.SimpleNamespace(proc=os.open("/proc", os.O_RDONLY))
maker = types.SimpleNamespace(cell=cell, reap=lambda pid: (0, os.wait4(pid, 0)[2].ru_utime))
template = clones.Template.__new__(clones.Template)
template.model = interpreters.Interpreter(maker, pid, os.pidfd_open(pid), os.open("/dev/null", os.O_RDONLY))
template.maker, template.users, template.sock = maker, 1, socket.socket()
assert template.model.halt()
template.held = tracing.Traced(pid)
clones._write_maps(cell.proc, pid, "0 0 1")
template.held._begin(56, (kernel.CLONE_LIVE, 0, 0, 0, 0))
tracing._ptrace(tracing._STEP, pid, 0, 0)
while not open(f"/proc/{pid}/task/{pid}/children").read(): pass
os.kill(pid, signal.SIGKILL)  # it has made its child, of which we have not heard
template.release()
assert not os.path.exists(f"/proc/{pid}")
"""


def test_a_template_that_is_killed_in_the_act_of_making_a_copy_ends() -> None:
    done = subprocess.run([sys.executable, "-c", KILLED_IN_THE_ACT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_killed_keeper_takes_templates_and_copies_along(strong: sandbox.Pool) -> None:
    with across.open_session(strong) as session:
        session.python("x = 1")
        (fork,) = session.fork(1)
        keeper = strong.keeper().worker.process.pid
        pids = descendants(keeper)
        assert "t" in [across._state(p) for p in pids]
        os.kill(keeper, signal.SIGKILL)
        assert wait_gone(pids) == []
        assert [one.python("print(x)").stdout for one in (session, fork)] == ["1\n", "1\n"]
        fork.close()


def test_more_forks_than_sessions_are_refused() -> None:
    with (
        sandbox.Pool(workers=1, bounds=sandbox.SessionBounds(sessions=2)) as pool,
        across.open_session(pool) as session,
    ):
        session.python("x = 1")
        with pytest.raises(IsolationError, match="2 sessions are open"):
            session.fork(2)
        assert wait_until(lambda: session.python("print(x)").stdout == "1\n", 5)
        session.fork(1)[0].close()


@pytest.mark.parametrize("name", kin.ALL)
def test_kin_do_not_reach_each_other(pool: sandbox.Pool, name: str) -> None:
    assert list(kin.ALL[name](pool)) == []


def test_kin_reach_each_other_without_walls() -> None:
    """The acts begin: those that only walls stop succeed in a process that has none."""
    with sandbox.Pool(workers=1, walls=[], min_level=0) as pool:
        family = kin.Family(pool)
        try:
            complaints = "\n".join(kin._against("root", family))
        finally:
            family.close()
    for act in ("*read by path", "*signal", "clone as the keeper does", "keep capabilities"):
        assert f"first against root: {act}" in complaints


def test_a_template_that_dies_while_it_is_copied_holds_nobody_up(strong: sandbox.Pool) -> None:
    keeper = strong.keeper().worker.process.pid
    for delay in range(8):
        with across.open_session(strong) as session:
            session.python("x = 1")
            (fork,) = session.fork(1)
            (deeper,) = fork.fork(1)
            assert session.forked == fork.forked == {"live": 1}, (delay, session.forked, fork.forked)
            templates = [p for p in descendants(keeper) if across._state(p) == "t"]
            killer = threading.Timer(delay / 4000, os.kill, (templates[0], signal.SIGKILL))
            killer.start()
            for one in (deeper, fork, session):
                assert one.python("print(x)").stdout == "1\n"
                one.fork(1)[0].close()
            killer.join()
            words = strong.keeper().worker.last_words()
            assert strong.keeper().worker.process.pid == keeper, words
            for one in (fork, deeper):
                one.close()
        assert wait_gone(templates) == []
