"""Processes that are killed from outside: no verdict is wrong, no wall is lost, and a service says how it is."""

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.sandbox.doubling import DOUBLE, PYTHON, TESTS
from tests.sandbox.processes import descendants, stats, wait_gone, wait_until, worker_pids
from verizero import sandbox
from verizero.sandbox import languages
from verizero.sandbox.process import Worker
from verizero.sandbox.worker.cgroup import CGroup
from verizero.sandbox.worker.forker import Forker

pytestmark = pytest.mark.run  # workers of the sandbox
SLOW = "import time; time.sleep(0.3)\nprint(int(input()) * 2)"
SLOW_C = (
    "#include <stdio.h>\n#include <unistd.h>\n"
    "int main() { int n; scanf(\"%d\", &n); usleep(300000); printf(\"%d\\n\", 2 * n); }"
)  # fmt: skip
LONG_TO_COMPILE = "#include <regex>\n#include <iostream>\nint main() { int n; std::cin >> n; std::cout << 2 * n; }"


@contextlib.contextmanager
def killing(victims, most):
    """Kill what `victims` returns, at any moment of the block, up to `most` processes; yield the list of the killed."""
    killed, stop = list[int](), threading.Event()

    def kill():
        while not stop.wait(0.002) and len(killed) < most:
            for pid in victims():
                if pid not in killed and len(killed) < most:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        killed.append(pid)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        stop.set()
        thread.join()


def children(parent):
    """Return the children of a process, oldest first."""
    found = stats()
    return sorted((p for p, f in found.items() if int(f[1]) == parent), key=lambda p: (int(found[p][19]), p))


def runs_of(pool):
    """Return the processes of programs: all children of workers but the first, which is the forker."""
    return [pid for worker in worker_pids(pool) for pid in children(worker)[1:]]


def named(pool, name):
    """Return the processes below the pool's workers that have this name."""
    found = []
    for pid in (p for worker in worker_pids(pool) for p in descendants(worker)):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                found.append(pid)
    return found


def test_killing_workers_and_runs_at_any_moment_loses_no_result():
    dice, statuses, sizes = random.Random(7), [], [0]
    program = "import time; time.sleep(0.02)\nprint(int(input()) * 2)"
    with sandbox.Pool(workers=2) as pool:
        sandbox.run(PYTHON, TESTS, pool=pool)

        def victims():
            if len(statuses) < sizes[-1] + 6 or not (workers := worker_pids(pool)):
                return []  # a slow machine needs time between two, or one run would be killed whenever it begins
            sizes.append(len(statuses))
            time.sleep(dice.uniform(0.05, 0.2))
            below = descendants(workers[0])
            return dice.choice([workers[:1], below, [*workers[:1], *below]])

        with killing(victims, 6) as killed, ThreadPoolExecutor(3) as threads:

            def runs():
                while len(killed) < 6:
                    statuses.append(sandbox.run(program, TESTS, pool=pool).status)

            for run in [threads.submit(runs) for _ in range(3)]:
                run.result()
        assert set(statuses) == {"passed"}
        now = worker_pids(pool)
    assert wait_gone([*killed, *now]) == []


def test_a_forker_that_is_killed_while_it_starts_costs_no_wall(monkeypatch):
    whole, killed, most = Worker.greeting, list[int](), 0

    def hit(worker):
        """Kill the forker of a worker, if it has one by now."""
        for pid in children(worker.process.pid)[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
                return True
        return False

    def greeting(worker):
        """Hit the forker of a worker that starts, before the pool hears of it; up to `most` of them."""
        if len(killed) < most:
            assert wait_until(lambda: hit(worker) or worker.process.poll() is not None)
        return whole(worker)

    monkeypatch.setattr(Worker, "greeting", greeting)
    with sandbox.Pool(workers=1) as pool:
        walls = dict(pool.isolation.stands)
        for worker in list(pool._all):
            pool._discard(worker)
        pool._idle.clear()
        most = 3
        assert sandbox.run(PYTHON, TESTS, pool=pool).passed
        assert dict(pool.require_workers().stands) == walls
    num_killed = len(killed)
    assert num_killed > 0
    most = num_killed + 3
    with sandbox.Pool(workers=1) as pool:
        assert dict(pool.isolation.stands) == walls, "nor the first worker of a pool"
    assert len(killed) > num_killed


def test_a_forker_that_is_killed_between_its_child_and_the_childs_number_ends_the_worker():
    """The child has the pipe open in which the number would come, as this process has here."""
    pids, _ = os.pipe()
    dead = subprocess.Popen(["true"])
    worker = os.fork()
    if worker == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)  # else a fault would wait for ever
        Forker(pids, pids, pids, pids, os.pidfd_open(dead.pid)).waiting_child()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == 1
    dead.wait()


def test_a_worker_without_its_forker_leaves_the_errors_of_its_last_run_alone(pool):
    """They decide if a compiler was killed."""
    program = "import sys, time\nprint('first words', file=sys.stderr)\ntime.sleep(0.3)\nsys.exit('last words')"
    with ThreadPoolExecutor(1) as thread:
        for _ in range(4):
            assert sandbox.run(PYTHON, TESTS, pool=pool).passed
            (worker,) = worker_pids(pool)
            run = thread.submit(sandbox.execute, program, pool=pool)
            assert wait_until(lambda: not pool._idle)
            os.kill(children(worker)[0], signal.SIGKILL)
            assert run.result().error == "first words\nlast words"


@pytest.mark.parametrize("language", ["python", "c"])
def test_a_program_that_is_killed_is_tried_again_and_never_wrong(language):
    if not sandbox.available()[language]:
        pytest.skip(f"{language} is not installed")
    with sandbox.Pool(workers=1, tools=languages.TOOLS if language == "c" else ()) as pool:
        if pool.isolation.level < 3:
            pytest.skip("without namespaces a program can kill itself")

        def run():
            if language == "c":
                return sandbox.run(SLOW_C, TESTS[:1], language="c", pool=pool)
            return sandbox.run(SLOW, TESTS[:1], pool=pool)

        killed: list[int] = []
        while not killed:
            with killing(lambda: runs_of(pool), 2) as killed:
                assert run().passed
        with killing(lambda: runs_of(pool), 1000):
            result = run()
        assert result.status == "sandbox_error", result
        assert "killed" in result.error
        assert run().passed


NIGHTLY = [("cpp", "g++"), ("cpp", "collect2"), ("cpp", "ld"), ("cpp", "sh"), ("rust", "gcc"), ("java", "java")]


@pytest.mark.parametrize(
    ("language", "victim"),
    [("cpp", "cc1plus"), ("rust", "rustc")]
    + [pytest.param(*program, marks=pytest.mark.nightly) for program in NIGHTLY],
)
def test_a_compiler_that_is_killed_is_tried_again(language, victim):
    if not sandbox.available()[language]:
        pytest.skip(f"{language} is not installed")
    program = LONG_TO_COMPILE if language == "cpp" else DOUBLE[language]
    with sandbox.Pool(workers=1, tools=languages.TOOLS) as pool:
        if pool.isolation.level < 3:
            pytest.skip("the compiler may be closed to the user of programs")
        killed = []
        while not killed:  # on a busy machine it may have ended before it is hit
            with killing(lambda: named(pool, victim), 1) as killed:
                assert sandbox.run(program, TESTS[:1], language=language, pool=pool).passed
        if victim == "cc1plus":
            with killing(lambda: named(pool, victim), 1000):
                result = sandbox.run(program, TESTS[:1], language=language, pool=pool)
            assert (result.status, "the compiler was killed" in result.error) == ("sandbox_error", True), result


@pytest.mark.parametrize("version", [1, 2])
def test_only_kills_for_the_groups_own_bound_are_the_programs_fault(tmp_path, version):
    files = {
        1: {"memory.limit_in_bytes": "", "memory.oom_control": "oom_kill {kills}", "memory.failcnt": "{hits}"},
        2: {"memory.max": "", "memory.events": "max 9\noom {hits}\noom_kill {kills}\noom_group_kill 0"},
    }[version]  # fmt: skip

    def write(kills, hits):
        for name, text in files.items():
            (tmp_path / name).write_text(text.format(kills=kills, hits=hits))

    for name in ("cgroup.procs", "pids.max"):
        (tmp_path / name).write_text("")
    write(kills=0, hits=0)
    group = CGroup({"memory": str(tmp_path), "pids": str(tmp_path)})
    seen = []
    for kills, hits in ((0, 0), (1, 0), (1, 1), (2, 2), (2, 2), (3, 2)):
        write(kills, hits)
        seen.append(group.has_new_kills())
    assert seen == [False, False, False, True, False, False]
