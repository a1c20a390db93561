"""Programs that start others without end: bounded by the kernel where it can, else counted by the worker."""

import contextlib
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sandbox.doubling import DOUBLE, EMPTY, LIMITS, TESTS, TIGHT
from tests.sandbox.processes import as_nobody, descendants, family, session, wait_gone, wait_until, worker_pids
from verizero import sandbox
from verizero.pipeline.errors import IsolationError
from verizero.sandbox import languages

pytestmark = pytest.mark.run  # workers of the sandbox

WALLS = {
    "level3": list(sandbox.WALLS),
    "own uid": ["landlock", "seccomp", "uid"],
    "counted": ["landlock", "seccomp"],
}
FLOOD = "f() { f | f & }; f; "


@pytest.fixture(scope="module", params=list(WALLS))
def pool(request):
    with sandbox.Pool(workers=1, walls=WALLS[request.param], tools=languages.TOOLS) as made:
        assert made.isolation.level == (3 if request.param == "level3" else 2)
        yield made


def is_counted(pool):
    """True if the worker bounds processes: the kernel has no count of this run alone."""
    return pool.isolation.level < 3 and (os.geteuid() != 0 or "uid" not in pool._walls)


@pytest.mark.parametrize("end", ["sleep 600", "exit"])
def test_a_flood_of_shells_has_a_bound_and_leaves_nothing(pool, end):
    """If the kernel counts, a fork of the shell fails, and the shell continues."""
    limits = replace(TIGHT, wall_s=1)
    for _ in range(3):
        result = sandbox.run(FLOOD + end, TESTS[:1], language="bash", limits=limits, pool=pool)
        assert result.status != "sandbox_error", result
        if is_counted(pool) and end != "exit":
            assert result.status == "runtime_error", result
            assert "32 processes" in result.error
        assert not result.passed
        assert all(len(family(pid)) == 2 for pid in worker_pids(pool)), "the forker and the child that waits, no others"
    ended = sandbox.run(DOUBLE["bash"], TESTS, language="bash", limits=LIMITS, pool=pool)
    assert ended.passed, ended


def test_the_kernel_bounds_processes_everywhere(pool):
    """If it counts all processes of the uid, the bound is so high that it refuses no other work of the user."""
    threads = int(Path("/proc/loadavg").read_text().split()[3].split("/")[1])
    result = sandbox.run("ulimit -u", EMPTY, language="bash", limits=LIMITS, pool=pool)
    bound = int(result.tests[0].stdout)
    assert threads + 256 < bound < threads + 2048 if is_counted(pool) else bound == LIMITS.processes + 2


def test_an_ordinary_users_own_bound_may_be_lower():
    """A bound that the user may not raise stays as it is, and programs run."""
    code = (
        "import resource, sandbox; resource.setrlimit(resource.RLIMIT_NPROC, (700, 700))\n"
        "from verizero.sandbox import languages\n"
        f"pool = sandbox.Pool(workers=1, walls={WALLS['counted']}, tools=languages.TOOLS)\n"
        "tests = [{'input': '', 'output': '700'}]\n"
        "print(sandbox.run('ulimit -u', tests, language='bash', pool=pool)); pool.close()"
    )
    assert "passed" in as_nobody("-c", code, uid=65533)


def test_a_flood_whose_worker_is_killed_ends_too(pool):
    """It doubles until its group gets the signal, also while the caller cleans up."""
    with sandbox.Pool(workers=1, walls=pool._walls, tools=languages.TOOLS) as own, ThreadPoolExecutor(1) as thread:
        assert own.isolation.level == pool.isolation.level
        (worker,) = worker_pids(own)
        slow = "f() { sleep 0.2; f | f & }; f; sleep 600"
        limits = replace(LIMITS, wall_s=600, processes=1024)
        run = thread.submit(sandbox.run, slow, TESTS[:1], language="bash", limits=limits, pool=own)
        assert wait_until(lambda: len(descendants(worker)) >= 20)
        os.kill(worker, signal.SIGKILL)
        own.close()
        assert wait_gone([worker]) == []
        assert wait_until(lambda: not session(worker))
        with contextlib.suppress(IsolationError):  # the pool may be closed when it tries the run again
            assert run.result().status == "sandbox_error"


def test_many_processes_one_after_another_are_no_flood(pool):
    """Dead orphans, for which nobody waits, do not count."""
    program = "read n; for i in $(seq 40); do (sleep 0.01 &) ; echo $i | cat > last; done; echo $((2 * n))"
    result = sandbox.run(program, TESTS[:1], language="bash", limits=LIMITS, pool=pool)
    assert result.passed, result


def test_a_run_that_is_halted_and_counted_continues(pool):
    """The machine has more processes than before, but they are not the program's."""
    program = "read n; for i in 1 2 3 4; do sleep 0.3; done; echo $((2 * n))"
    limits = replace(LIMITS, processes=3)
    with sandbox.Pool(workers=1, walls=pool._walls, tools=languages.TOOLS) as others, ThreadPoolExecutor(1) as thread:
        assert others.isolation.level == pool.isolation.level
        run = thread.submit(sandbox.run, program, TESTS[:1], language="bash", limits=limits, pool=pool)
        many = "for i in 1 2 3 4 5 6 7 8; do sleep 0.7 & done; wait; echo 0"
        assert sandbox.run(many, TESTS[:1], language="bash", limits=LIMITS, pool=others).passed
        assert run.result().passed, run.result()


def test_workers_of_all_pools_have_uids_of_their_own():
    if os.geteuid() != 0:
        pytest.skip("an ordinary user has one uid")
    with sandbox.Pool(workers=1, walls=WALLS["own uid"]) as one, sandbox.Pool(workers=1, walls=WALLS["own uid"]) as two:
        results = [sandbox.run("import os; print(os.getuid(), os.geteuid())", EMPTY, pool=p) for p in (one, two)]
    uids = {uid for result in results for uid in result.tests[0].stdout.split()}
    assert len(uids) == 2
    assert "0" not in uids
