"""The process that tests fork: one for all processes of a run of the tests, until the last of them has ended."""

from __future__ import annotations

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


@pytest.mark.run
def test_processes_share_it_and_it_ends_with_the_last(tmp_path: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = {**os.environ, FOLDER: str(tmp_path)}
    pair, numbers = [], []
    for _ in range(2):
        each = subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, **pipes)  # type: ignore[call-overload]
        numbers.append(int(each.stdout.readline()))
        pair.append(each)
    assert numbers[0] == numbers[1]
    pair[0].communicate("\n", timeout=60)  # the one that started it, and left it none of its streams
    assert alive(numbers), "the other one may call it"
    pair[1].communicate("\n", timeout=60)
    until(lambda: not alive(numbers), "the end of the process")


def test_where_it_was_killed_the_next_one_starts_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    first = Warm(("json",))
    killed = first.call(os.getppid)
    os.kill(killed, signal.SIGKILL)
    until(lambda: not alive([killed]), "the end of the process")
    second = Warm(("json",))
    assert second.call(os.getppid) != killed
    with pytest.raises((EOFError, BrokenPipeError)):
        first.call(os.getppid)
    second.close()


def test_what_a_fork_raises_is_raised_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    warm = Warm(("json",))
    with pytest.raises(ZeroDivisionError):
        warm.call(divmod, 1, 0)
    assert warm.call(divmod, 7, 2) == (3, 1)
    warm.close()


def still_there_after_a_program() -> bool:
    """True if a temporary folder outlives a program that is started, forked and ends while the folder is used."""
    with tempfile.TemporaryDirectory() as name:
        subprocess.run([sys.executable, "-m", "this"], check=True, stdout=subprocess.DEVNULL)
        return Path(name).is_dir()


def test_a_program_that_ends_removes_nothing_of_its_starters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    warm = Warm(("json",))
    assert warm.call(still_there_after_a_program)
    warm.close()


def written_through_a_descriptor() -> bytes:
    """What a program of a module writes into a descriptor that it was given."""
    reads, writes = os.pipe()
    subprocess.run([sys.executable, "-m", "tests.writes_into", str(writes)], check=True, pass_fds=(writes,))
    os.close(writes)
    with open(reads, "rb") as pipe:
        return pipe.read()


def test_a_program_has_the_descriptors_that_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    warm = Warm(("json",))
    assert warm.call(written_through_a_descriptor) == b"here"
    warm.close()


def status_of_a_program_with_an_inherited_file() -> int:
    """Status of a program that closes, as an object, a file that the process had open which starts it."""
    with open(os.devnull) as sys.inherited:  # type: ignore[attr-defined]
        return subprocess.run([sys.executable, "-m", "tests.closes_inherited"], check=False).returncode


def test_an_inherited_file_closes_no_file_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    warm = Warm(("json",))
    assert warm.call(status_of_a_program_with_an_inherited_file) == 0
    warm.close()


def shown_of_a_program(folder: str) -> list[str]:
    """What /proc shows of a program that a fork starts with a variable, as long as it waits for its input."""
    environment = {**os.environ, "MINE": folder}
    with subprocess.Popen([sys.executable, "-m", "json.tool"], env=environment, stdin=subprocess.PIPE) as waits:
        found = until(lambda: marked(f"MINE={folder}"), "the program")
        assert list(found) == [waits.pid]
        waits.communicate(b"1")
    return list(found.values())


def test_a_programs_command_and_variables_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    warm = Warm(("json",))
    assert warm.call(shown_of_a_program, str(tmp_path)) == [f"{sys.executable} -m json.tool "]
    warm.close()


@pytest.mark.run
def test_where_triton_interprets_there_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    plain = Warm(("json",))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    interpreted = Warm(("json",))
    assert plain.call(os.getppid) != interpreted.call(os.getppid)
    for each in (plain, interpreted):
        each.close()
