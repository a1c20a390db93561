"""The process that tests fork: one for all processes of a run of the tests, until the last of them has ended."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.processes import alive, marked, until
from tests.warm import FOLDER, ROOT, Warm

PROGRAM = "import os; from tests.warm import warm; print(warm(('json',)).call(os.getppid), flush=True); input()"


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))


@pytest.mark.run
def test_processes_share_it_and_it_ends_with_the_last():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    pair, numbers = [], []
    for _ in range(2):
        each = subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=ROOT, **pipes)
        numbers.append(int(each.stdout.readline()))
        pair.append(each)
    assert numbers[0] == numbers[1]
    pair[0].communicate("\n", timeout=60)  # the one that started it, and left it none of its streams
    assert alive(numbers), "the other one may call it"
    pair[1].communicate("\n", timeout=60)
    until(lambda: not alive(numbers), "the end of the process")


def test_where_it_was_killed_the_next_one_starts_another():
    first = Warm(("json",))
    killed = first.call(os.getppid)
    os.kill(killed, signal.SIGKILL)
    until(lambda: not alive([killed]), "the end of the process")
    second = Warm(("json",))
    assert second.call(os.getppid) != killed
    with pytest.raises((EOFError, BrokenPipeError)):
        first.call(os.getppid)
    second.close()


def shown_of_a_program(folder):
    """What /proc shows of a program that a fork starts with a variable; True if a folder of the fork outlives it."""
    environment = {**os.environ, "MINE": folder}
    with (
        tempfile.TemporaryDirectory() as name,
        subprocess.Popen([sys.executable, "-m", "json.tool"], env=environment, stdin=subprocess.PIPE) as waits,
    ):
        found = until(lambda: marked(f"MINE={folder}"), "the program")
        assert list(found) == [waits.pid]
        waits.communicate(b"1")
        return list(found.values()), Path(name).is_dir()


def test_a_fork_raises_here_and_its_programs_have_their_own_words_variables_and_end(tmp_path):
    warm = Warm(("json",))
    with pytest.raises(ZeroDivisionError):
        warm.call(divmod, 1, 0)
    assert warm.call(shown_of_a_program, str(tmp_path)) == ([f"{sys.executable} -m json.tool "], True)
    warm.close()
