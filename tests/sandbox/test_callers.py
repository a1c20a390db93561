"""Callers of the sandbox: threads and event loops at once, forks, root without root's rights."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tests.processes import until
from tests.sandbox.doubling import PYTHON, TESTS
from tests.sandbox.processes import descendants, wait_gone
from tests.source import ROOT
from verizero import sandbox

pytestmark = pytest.mark.run  # workers of the sandbox
ROOTS_TRIAL = """
import json, sandbox
from verizero.pipeline.errors import IsolationError
tests = [{"input": "4", "output": "8"}]
with sandbox.Pool(workers=1) as pool:
    good = sandbox.run("print(int(input()) * 2)", tests, pool=pool)
    bad = sandbox.run("print(open('/etc/passwd').read())", tests, pool=pool)
    notes = dict(pool.isolation.notes)
try:
    with sandbox.Pool(workers=1, min_level=3) as pool:
        answer = str(pool.isolation.level)
except IsolationError as exc:
    answer = str(exc)
print(json.dumps([good.status, good.level, bad.status, bad.error, notes, answer]))
"""


def test_threads_and_event_loops_share_a_pool():
    def verify(factor):
        run = partial(sandbox.run, f"print(int(input()) * {factor})", TESTS, pool=pool)
        return (asyncio.run(asyncio.to_thread(run)) if factor % 3 else run()).passed

    with sandbox.Pool(workers=2) as pool, ThreadPoolExecutor(12) as threads:
        assert [i for i, passed in enumerate(threads.map(verify, range(36))) if passed] == [2]
        assert len(pool._all) <= 2


def test_a_forked_caller_gets_workers_of_its_own():
    with sandbox.Pool(workers=1) as pool:
        assert sandbox.run(PYTHON, TESTS, pool=pool).passed
        child = os.fork()
        if child == 0:
            good = sandbox.run(PYTHON, TESTS, pool=pool).passed
            pool.close()
            os._exit(0 if good else 1)
        assert sandbox.run(PYTHON, TESTS, pool=pool).passed
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert sandbox.run(PYTHON, TESTS, pool=pool).passed


def test_a_killed_caller_leaves_no_process():
    code = (
        "from verizero import sandbox\n"
        "with sandbox.Pool(workers=1) as pool:\n"
        "    limits = sandbox.Limits(cpu_s=600, wall_s=600)\n"
        "    sandbox.run('while True: pass', [{'input': '', 'output': ''}], pool=pool, limits=limits)"
    )
    caller = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    # One look: a process of the sandbox's own start may have ended by the next.
    below = until(lambda: len(found := descendants(caller.pid)) >= 3 and found, "a worker, its forker and the run")
    assert isinstance(below, list)
    caller.kill()
    caller.wait()
    assert wait_gone(below) == []


@pytest.mark.parametrize(
    "rights", ["-sys_admin", pytest.param("-sys_admin,-setuid,-setgid", marks=pytest.mark.nightly), "-all"]
)
def test_root_without_its_rights_has_walls_or_hears_the_remedy(rights):
    become = shutil.which("setpriv")
    if os.geteuid() != 0 or become is None:
        pytest.skip("needs root and setpriv")
    command = [become, f"--bounding-set={rights}", sys.executable, "-c", ROOTS_TRIAL]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    good, level, bad, error, notes, answer = json.loads(done.stdout)
    assert (good, bad) == ("passed", "runtime_error")
    assert level in (2, 3)
    if level == 3:
        assert "FileNotFoundError" in error
        assert notes["uid"].startswith("host uid 0,")
        assert answer == "3"
    else:
        assert "PermissionError" in error
        assert "Operation not permitted" in notes["namespaces"]
        assert "namespaces" in answer
        assert "sandbox.min_level to 2" in answer
    if rights == "-all":
        assert level == 2, "root's uid cannot be mapped without any right"
