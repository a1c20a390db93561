"""A worker that runs programs wrongly is found by a known program, and what it has answered is repeated."""

import fcntl
import os

import pytest

from tests.sandbox.leavings import complaints
from tests.sandbox.processes import wait_gone, worker_pids
from verizero import sandbox
from verizero.sandbox.pool import CHECK_EVERY, check
from verizero.sandbox.worker import frames

pytestmark = pytest.mark.run  # workers of the sandbox

RIGHT = [{"input": "a text of some length", "output": "htgnel emos fo txet a"}]
DOUBLE = "print(input()[::-1])"
FILES = ("payload", "out", "errors", "log")


def _spoil(pool, file):
    """Do to a worker that has run a program what a program without walls could do to all later ones."""

    def append(worker):
        fd = worker.files[file]
        os.pwrite(fd, b"left" * 9, os.fstat(fd).st_size)
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
        os.set_inheritable(fd, False)
        if file:
            worker.files[file] = os.memfd_create("another")
            os.close(fd)
        return worker.process.pid

    assert sandbox.run(DOUBLE, RIGHT, pool=pool).passed
    return pool.use(append)


@pytest.mark.parametrize("kind", [frames.STDIN, frames.FUNCTION, frames.SUITE])
def test_a_worker_that_nothing_has_spoilt_stays(kind, pool):
    assert all(pool.use(lambda worker: check(worker, kind)) for _ in range(3))
    assert len(worker_pids(pool)) == 1


@pytest.mark.parametrize("file", range(4), ids=FILES)
def test_what_a_spoilt_worker_answers_is_repeated_by_another(file, pool):
    pid = _spoil(pool, file)
    assert list(complaints(pool)) == []
    assert worker_pids(pool) != [pid]
    assert wait_gone([pid]) == []


def test_all_workers_of_a_pool_may_be_spoilt():
    with sandbox.Pool(workers=6) as pool:
        sandbox.run_many([sandbox.Trial("import time; time.sleep(0.3); " + DOUBLE, RIGHT)] * 6, pool=pool)
        for worker in pool._all:
            fcntl.fcntl(worker.files[0], fcntl.F_SETFL, os.O_APPEND)
        wrong = sandbox.run("print(1)", RIGHT, pool=pool)
        assert (wrong.status, wrong.tests[0].stdout) == ("wrong_answer", "1\n")


def test_a_program_that_spoils_its_own_worker_has_its_own_verdict():
    with sandbox.Pool(workers=1) as pool:
        pool.use(lambda worker: os.close(worker.files[3]) or worker.files.__setitem__(3, os.memfd_create("another")))
        (pid,) = worker_pids(pool)
        assert sandbox.run("1 / 0", RIGHT, pool=pool).status == "wrong_answer"  # no record, so its output decides
        assert sandbox.run("1 / 0", RIGHT, pool=pool).status == "runtime_error"
        assert worker_pids(pool) != [pid]


def test_a_worker_is_checked_now_and_then_whatever_its_results():
    with sandbox.Pool(workers=1) as pool:
        counts = []
        for _ in range(CHECK_EVERY + 2):
            assert sandbox.run(DOUBLE, RIGHT, pool=pool).passed
            counts.append(pool.use(lambda worker: worker.runs))
        assert counts == [*range(1, CHECK_EVERY), 0, 1, 2]


@pytest.mark.parametrize("language", ["bash", "javascript", "c"])
def test_other_languages_are_checked_too(language):
    if not sandbox.available()[language]:
        pytest.skip(f"{language} is not installed")
    code = {"bash": "rev", "javascript": "console.log('b a')", "c": '#include <stdio.h>\nint main() { puts("b a"); }'}
    with sandbox.Pool(workers=1, tools=sandbox.TOOLS) as pool:
        _spoil(pool, 0)
        result = sandbox.run(code[language], [{"input": "a b", "output": "b a"}], language=language, pool=pool)
        assert result.passed, result
