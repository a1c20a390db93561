"""Nothing of one run reaches the next one of its worker: not at any level, and not past one wall that is missing."""

import os
from types import SimpleNamespace

import pytest

from tests.sandbox import leavings
from tests.sandbox.conftest import LEVEL_2
from tests.sandbox.processes import as_nobody
from verizero import sandbox
from verizero.sandbox.worker import kernel, seccomp
from verizero.sandbox.worker.walls import LAST_READ_S, clear

NO_SECCOMP = ("namespaces", "landlock", "uid", "cgroup")
NO_LANDLOCK = ("namespaces", "seccomp", "uid", "cgroup")


@pytest.mark.run
@pytest.mark.parametrize(
    "walls", [pytest.param(sandbox.WALLS, marks=pytest.mark.nightly), LEVEL_2, NO_SECCOMP, NO_LANDLOCK], ids=",".join
)
def test_a_program_leaves_nothing(walls):
    """What is left behind all walls is left where one of them is missing."""
    with sandbox.Pool(workers=1, min_level=1, walls=walls) as pool:
        for name, program in leavings.PYTHON.items():
            text = "the first input, which is longer than the others are" * 2
            assert sandbox.execute(program, text, pool=pool).status != "sandbox_error", name
            assert list(leavings.complaints(pool)) == [], name
        (worker,) = pool._idle
        assert os.fstat(worker.files[0]).st_size == worker.payload_bytes, "of inputs before, no child reads the rest"


LOOKS = """
import ctypes, os
of_folder = os.stat('.')
print(of_folder.st_mtime_ns, of_folder.st_atime_ns, len({os.statvfs(path) for path in ('.', '/', '/usr/lib')}))
print(ctypes.CDLL(None).statvfs(b'/', ctypes.create_string_buffer(500)))
"""
LOOKS_AT_NUMBERS = LOOKS + "print(of_folder.st_ino, os.fstat(os.open('a', os.O_CREAT)).st_ino, os.uname().nodename)"


@pytest.mark.run
def test_a_program_learns_nothing_of_others_from_its_folder(level):
    looks = LOOKS_AT_NUMBERS if level.isolation.level == 3 else LOOKS
    expected = sandbox.execute(looks, pool=level).stdout
    assert expected.split()[:4] == ["0", f"{LAST_READ_S}000000000", "1", "-1"]
    assert level.isolation.level < 3 or expected.split()[-1] == "sandbox", expected
    for leaves in (
        "import os\nfor i in range(50): open(f'{i}', 'w').close(); os.remove(f'{i}')",
        "import os\nfor _ in range(9): os.close(os.open('.', os.O_TMPFILE | os.O_RDWR))",
        "import os\nos.mkdir('b')",
        "pass",
    ):
        sandbox.execute(leaves, pool=level)
        assert sandbox.execute(looks, pool=level).stdout == expected, leaves


def test_who_lists_a_folder_leaves_no_time_in_it(tmp_path):
    """A process of the machine may, where the folder is one of the machine's."""
    clear(SimpleNamespace(has_namespaces=False, scratch=str(tmp_path)), 1)
    assert os.listdir(tmp_path) == []
    assert tmp_path.stat().st_atime == LAST_READ_S


@pytest.mark.run
def test_a_program_of_another_language_leaves_nothing(tools):
    for name, (code, language) in leavings.NATIVE.items():
        if sandbox.available()[language]:
            test = {"input": "the first input" * 9, "output": None}
            assert sandbox.run(code, [test], language=language, pool=tools).status != "sandbox_error", name
            assert list(leavings.complaints(tools)) == [], name
            again = {"input": "ab", "output": "ab"}
            assert sandbox.run("cat; echo c >&2", [again] * 2, language="bash", pool=tools).passed, name


@pytest.mark.run
def test_programs_with_processes_cannot_reach_the_forker(tools):
    for act in ("sched_setaffinity(p, {0})", "kill(p, 0)", "close(os.open(f'/proc/{p}/fd/0', os.O_RDONLY))"):
        result = sandbox.execute(leavings.ELSEWHERE.replace("ACT", f"os.{act}"), pool=tools)
        assert (result.status, result.stdout) == ("passed", "[]\n"), act


@pytest.mark.run
def test_programs_of_an_ordinary_user_cannot_open_what_the_forker_has_open():
    act = "[os.close(os.open(f'/proc/{p}/fd/{fd}', os.O_RDWR | os.O_NONBLOCK)) for fd in range(7)]"
    program = leavings.ELSEWHERE.replace("ACT", act)
    made = f"sandbox.Pool(workers=1, walls={LEVEL_2})"
    code = f"from verizero import sandbox\nprint(sandbox.execute({program!r}, pool={made}))"
    assert "stdout='[]\\n'" in as_nobody("-c", code)


@pytest.mark.run
def test_only_not_to_wait_can_be_set(pool):
    code = (
        "import fcntl, os\nfor name in ('APPEND', 'ASYNC', 'DIRECT', 'NOATIME', 'NONBLOCK'):\n"
        "  try: fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | getattr(os, 'O_' + name)); print(name)\n"
        "  except PermissionError: pass\nos.set_blocking(0, False); print(os.get_blocking(0))"
    )
    assert sandbox.execute(code, pool=pool).stdout == "NONBLOCK\nFalse\n"


def test_the_flags_that_cannot_be_set_are_those_of_this_machine():
    if kernel.MACHINE not in seccomp.MACHINES:
        pytest.skip(f"no system call table for {kernel.MACHINE}")
    assert seccomp._SET_ONCE[kernel.MACHINE] == os.O_APPEND | os.O_ASYNC | os.O_DIRECT | os.O_NOATIME
