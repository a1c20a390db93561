"""Workers that die, pools that close, folders that programs fill: no result is lost and nothing is left."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.sandbox.doubling import PYTHON, TESTS
from tests.sandbox.processes import descendants, family, wait_gone, wait_until, worker_pids
from verizero import sandbox
from verizero.pipeline.errors import IsolationError
from verizero.sandbox import work_folders
from verizero.sandbox.worker import disk
from verizero.sandbox.worker.frames import LANDLOCK, NAMESPACES
from verizero.sandbox.worker.watching import allowed_wall_s


@pytest.mark.run
def test_a_child_killed_while_it_waits_costs_nothing(pool):
    assert sandbox.run(PYTHON, TESTS, pool=pool).passed
    (worker,) = worker_pids(pool)
    for factor in (3, 5):
        forker, waiting = family(worker)
        os.kill(waiting, signal.SIGKILL)
        tests = [{"input": str(i), "output": str(factor * i)} for i in range(4)]
        assert sandbox.run(f"print(int(input()) * {factor})", tests, pool=pool).passed
        assert family(worker)[0] == forker
    assert worker_pids(pool) == [worker]


@pytest.mark.run
def test_no_program_can_pass_for_walls_that_did_not_go_up(pool):
    feigned = "import os\nos.write(2, b'sandbox: PermissionError: no\\n')\nos._exit(214)"
    result = sandbox.run(feigned, TESTS, pool=pool)
    assert {t.status for t in result.tests} == {"runtime_error"}, result
    assert sandbox.run(PYTHON, TESTS, pool=pool).passed


def _nest(folder, depth):
    """Make folders in each other, deeper than Python's own functions can follow."""
    place = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=place)
        inner = os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(place)


@pytest.mark.run
def test_folders_of_killed_callers_are_swept(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(work_folders, "_swept", threading.Event())
    live, held = work_folders.make()
    dead, lost = work_folders.make()
    os.close(lost)
    try:
        for home in (live, dead):
            _nest(f"{home}/box", 1500)
        assert work_folders.sweep() == 1
        assert Path(live).exists()
        assert not Path(dead).exists()
        work_folders.remove(live, held)
        assert list(tmp_path.iterdir()) == []
    finally:  # pytest could not remove them either
        disk.empty(str(tmp_path))


def test_a_folder_that_a_process_fills_again_and_again_is_given_up(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("x")
    monkeypatch.setattr(os, "unlink", lambda path: None)
    monkeypatch.setattr(disk, "MAX_EMPTY_S", 0.05)
    with pytest.raises(TimeoutError, match=r"is not empty after 0\.05 s"):
        disk.empty(str(tmp_path))


def test_a_folder_that_is_removed_before_its_lock_is_made_again(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lock, removed = fcntl.flock, []

    def late(number, flags):
        if not removed:  # another process sweeps between the file's making and its lock
            removed.extend(tmp_path.iterdir())
            shutil.rmtree(removed[0])
        lock(number, flags)

    monkeypatch.setattr(fcntl, "flock", late)
    home, held = work_folders.make()
    assert [Path(home)] == list(tmp_path.iterdir()) != removed
    work_folders.remove(home, held)


def test_a_link_in_a_shared_folder_leads_the_sweep_nowhere(monkeypatch, tmp_path):
    """Where the kernel follows links of others in shared folders, one must not empty the folder that it names."""
    shared, mine = tmp_path / "shared", tmp_path / "mine"
    shared.mkdir()
    mine.mkdir()
    for name in ("canary", "precious"):
        (mine / name).write_text("x")
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    (shared / "verizero-sandbox-link").symlink_to(mine)
    abandoned = shared / "verizero-sandbox-inside"
    abandoned.mkdir()
    (abandoned / "canary").symlink_to(mine / "canary")
    (abandoned / "box").symlink_to(mine)
    assert work_folders.sweep() == 0
    (abandoned / "canary").unlink()
    (abandoned / "canary").write_text("x")
    assert work_folders.sweep() == 1
    assert not abandoned.exists()
    assert sorted(p.name for p in mine.iterdir()) == ["canary", "precious"]


@pytest.mark.run
def test_folders_of_another_user_stay(monkeypatch, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can make files of another user")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name, owner, of_lock in (("a", 65534, 0), ("b", 0, 65534)):
        folder = tmp_path / f"verizero-sandbox-{name}"
        folder.mkdir()
        (folder / "canary").write_text("x")
        os.chown(folder / "canary", of_lock, of_lock)
        os.chown(folder, owner, owner)
    assert work_folders.sweep() == 0
    assert len(list(tmp_path.rglob("canary"))) == 2


@pytest.mark.run
def test_below_the_level_asked_for_it_refuses_and_says_what_to_do():
    with sandbox.Pool(workers=1, walls=["seccomp"]) as pool, pytest.raises(IsolationError) as caught:
        sandbox.run(PYTHON, TESTS, pool=pool)
    assert "landlock (switched off)" in str(caught.value)
    assert "min_level to 1" in str(caught.value)
    with sandbox.Pool(workers=1, walls=["seccomp"], min_level=1) as pool:
        result = sandbox.run(PYTHON, TESTS, pool=pool)
    assert (result.passed, result.level) == (True, 1)


def test_a_closed_pool_and_bad_settings_are_refused():
    pool = sandbox.Pool(workers=1)
    pool.close()
    with pytest.raises(IsolationError, match="closed"):
        sandbox.run(PYTHON, TESTS, pool=pool)
    for settings, named in (
        ({"workers": 0}, "workers"),
        ({"min_level": 4}, "min_level"),
        ({"walls": ["moat"]}, "moat"),
    ):
        with pytest.raises(ValueError, match=named):
            sandbox.Pool(**settings)


@pytest.mark.run
def test_nothing_grows(pool):
    sandbox.run(PYTHON, TESTS, pool=pool)
    (worker,) = worker_pids(pool)
    before = len(os.listdir("/proc/self/fd")), threading.active_count(), family(worker)[0]
    for program in (PYTHON, "1 / 0", "import os; os._exit(3)", "open('x', 'w').write('y')") * 5:
        sandbox.run(program, TESTS, pool=pool)
    after = len(os.listdir("/proc/self/fd")), threading.active_count(), family(worker)[0]
    assert len({worker, *descendants(worker)}) == 3
    assert before == after


def test_a_folder_is_emptied_whatever_is_in_it(tmp_path):
    deep = tmp_path
    for _ in range(200):
        deep /= "d"
        deep.mkdir()
    (tmp_path / "locked").mkdir()
    (tmp_path / "locked" / "file").write_text("x")
    (tmp_path / "locked").chmod(0)
    (tmp_path / "link").symlink_to("/")
    assert disk.is_over(str(tmp_path), 1 << 20) is False
    assert disk.is_over(str(tmp_path), 1) is True
    disk.empty(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_folders_deeper_than_a_path_can_name_are_too_many(tmp_path):
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(tmp_path)
        for _ in range(25):
            os.mkdir("a" * 200)
            os.chdir("a" * 200)
    finally:
        os.fchdir(here)
        os.close(here)
    assert disk.is_over(str(tmp_path), 1 << 30) is True
    disk.empty(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.run
def test_an_interrupt_ends_the_runs_in_progress_and_no_others():
    limits = sandbox.Limits(wall_s=3600, cpu_s=600)
    with sandbox.Pool(workers=2) as pool, ThreadPoolExecutor(1) as thread:
        assert sandbox.run(PYTHON, TESTS, pool=pool).passed
        before = set(worker_pids(pool))
        run = thread.submit(sandbox.run, "import time; time.sleep(3600)", TESTS, limits=limits, pool=pool)
        assert wait_until(lambda: not pool._idle)
        pool.interrupt()
        assert run.result().status == "sandbox_error"

        def strike(*_):
            if not pool._idle:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.raise_signal(signal.SIGINT)

        before_alarm = signal.signal(signal.SIGALRM, strike)
        signal.setitimer(signal.ITIMER_REAL, 0.5, 0.1)
        trials = [sandbox.Trial("import time; time.sleep(3600)", TESTS, limits=limits)] * 9
        try:
            with pytest.raises(KeyboardInterrupt):
                sandbox.run_many(trials, pool=pool)
        finally:
            signal.signal(signal.SIGALRM, before_alarm)
        assert sandbox.run(PYTHON, TESTS, pool=pool).passed
        assert not before & set(worker_pids(pool))


@pytest.mark.run
def test_a_busy_machine_makes_no_timeout():
    """Four processes spin on the core of the pool: CPU time counts, and the queue for a CPU does not."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        # The kernel shares a core among sessions: each spins in its own.
        spin = [sys.executable, "-c", "while True: pass"]
        busy = [subprocess.Popen(spin, start_new_session=True) for _ in range(4)]
        with sandbox.Pool(workers=1) as pool:
            program = "import time\nwhile time.process_time() < 0.3: pass\nprint(int(input()) * 2)"
            limits = sandbox.Limits(wall_s=0.75, cpu_s=5)  # what a program waits for a disk counts
            result = sandbox.run(program, TESTS[:1], limits=limits, pool=pool)
    finally:
        os.sched_setaffinity(0, cores)
        for one in busy:
            one.kill()
            one.wait()
    assert result.passed, result
    assert result.tests[0].wall_s > limits.wall_s, "the machine was not busy enough to show anything"


@pytest.mark.parametrize(
    ("used", "num_processes", "threads", "allowed"),
    [
        (4.0, 1, [(0.0, 0.0), *[(4 / 30, 1.9)] * 30], 10.0),  # they have waited for each other
        (4.0, 1, [(0.0, 0.0), *[(4 / 30, 5.9)] * 30], 10 + 5.9 - (4 - 4 / 30) / 2),
        (4.0, 1, [(0.1, 0.0), (3.9, 16.0)], 25.95),  # one that computes on a busy machine
        (4.0, 1, [(4.0, 900.0)], 200.0),
        (4.0, 1, [*[(4 / 30, 900.0)] * 30], 20.0),
        (4.0, 2, [(0.0, 0.0), (4.0, 900.0)], 20.0),
        (0.0, 1, [(0.0, 0.0)], 10.0),
        (0.1, 1, [], 10.0),
        (4.0, 1, [], 20.0),
    ],
)
def test_a_run_lasts_longer_only_for_what_other_work_took(used, num_processes, threads, allowed):
    assert allowed_wall_s(10.0, used, num_processes, threads, cores=2) == pytest.approx(allowed)


@pytest.mark.run
def test_a_worker_that_starts_while_its_pool_is_closed_does_not_run(monkeypatch):
    with sandbox.Pool(workers=1) as pool:
        starts, started = pool._start_the_first, []

        def slowly():
            started.append(starts())
            pool.close()
            return started[0]

        monkeypatch.setattr(pool, "_start_the_first", slowly)
        with pytest.raises(IsolationError, match="closed"):
            pool.isolation  # noqa: B018
    assert wait_gone([started[0].process.pid]) == []


@pytest.mark.run
def test_a_later_worker_with_fewer_walls_than_the_first_is_not_taken():
    with sandbox.Pool(workers=1, min_level=0) as pool:
        assert sandbox.run(PYTHON, TESTS, pool=pool).passed
        pool._walls -= {LANDLOCK, NAMESPACES}
        (worker,) = worker_pids(pool)
        os.kill(worker, signal.SIGKILL)
        result = sandbox.run(PYTHON, TESTS, pool=pool)
    assert (result.status, "has level" in result.error) == ("sandbox_error", True), result


@pytest.mark.run
@pytest.mark.parametrize("number", [96, 100, 104])
def test_a_worker_starts_whatever_numbers_its_descriptors_have(number):
    """A process with many open files gives a worker descriptors whose numbers are also the places it moves them to."""
    held = []
    try:
        while not held or held[-1] < number:
            held.append(os.open(os.devnull, os.O_RDONLY))
        with sandbox.Pool(workers=1) as pool:
            assert sandbox.run(PYTHON, TESTS, pool=pool).passed
    finally:
        for fd in held:
            os.close(fd)
