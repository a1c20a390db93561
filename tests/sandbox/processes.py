"""Processes of this machine as /proc shows them: who is below a worker, and when they are gone."""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from tests.processes import descendants, stats

ROOT = Path(__file__).resolve().parents[2]


def wait_until(happens, seconds=60.0):
    """Wait until `happens()` is true. False if it is still not after `seconds`."""
    end = time.monotonic() + seconds
    while not happens():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def session(leader):
    """Return the living processes of the session that a worker leads."""
    return {pid for pid, fields in stats().items() if int(fields[3]) == leader and fields[0] not in "ZX"}


def worker_pids(pool):
    """Return the process ids of the pool's workers."""
    return [w.process.pid for w in list(pool._all)]


def family(worker):
    """Return, oldest first, the processes below a worker that has nothing to do: its forker and the waiting child."""
    wait_until(lambda: len(descendants(worker)) == 2)
    return sorted(descendants(worker), key=lambda pid: int(stats()[pid][19]))


def wait_gone(pids):
    """Return the processes that still run after a while."""
    wait_until(lambda: not any(Path(f"/proc/{p}").exists() for p in pids))
    return [p for p in pids if Path(f"/proc/{p}").exists()]


def as_nobody(*arguments, uid=65534):
    """Return what the system's Python prints as an ordinary user. Skips the test where there is none."""
    import pytest  # only here: that user's Python has none, and imports this file

    python, become = "/usr/bin/python3", shutil.which("setpriv")
    if os.geteuid() != 0 or not become or not os.access(python, os.X_OK):
        pytest.skip("needs root, setpriv and an interpreter that others may run")
    ids = [f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    done = subprocess.run(
        [become, *ids, python, "-B", *arguments], cwd=tempfile.gettempdir(), capture_output=True, text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
