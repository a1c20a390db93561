"""Programs print in the sandbox what they print in a plain interpreter, which runs each of them as a file."""

import os
import subprocess
import sys

import pytest

from tests.sandbox.programs import tables
from verizero import sandbox

pytestmark = pytest.mark.run  # workers of the sandbox, and interpreters
_TABLES = tables("cpython")
IMPORTS = "import sys, os, io, atexit, threading, builtins, contextlib\n"
PROGRAMS = _TABLES["programs"] | {n: IMPORTS + program for n, program in _TABLES["last outputs"].items()}
"""Programs, some with an input; the last ones flush their output at their end, by streams, handlers and finalizers."""


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What each program prints under a plain interpreter with the sandbox's hash seed and encoding."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "PYTHONUNBUFFERED": ""}
    outputs = {}
    for name, row in PROGRAMS.items():
        program, stdin = row if isinstance(row, tuple) else (row, "''")
        folder = tmp_path_factory.mktemp("cpython")
        (folder / "main.py").write_text(program, encoding="utf-8")
        command = {"args": [sys.executable, "main.py"], "cwd": folder, "env": environment}
        done = subprocess.run(**command, input=eval(stdin).encode(), capture_output=True, check=False)
        outputs[name] = (program, eval(stdin), done.stdout.decode())
    return outputs


def test_a_program_prints_what_it_prints_elsewhere(level, printed):
    for name, (program, stdin, expected) in printed.items():
        assert expected, f"the plain interpreter must run {name}"
        result = sandbox.run(program, [{"input": stdin, "output": expected}] * 3, pool=level)
        assert result.passed, (name, result.tests[0], expected)


def test_values_that_processes_would_share_need_a_folder_of_the_runs_own(level):
    program = "import multiprocessing as m\nv = m.Value('i', 3)\nwith v.get_lock(): v.value += 1\nprint(v.value)"
    result = sandbox.run(program, [{"input": "", "output": "4"}] * 2, pool=level)
    assert result.passed if level.isolation.level == 3 else "/dev/shm" in result.error, result


def test_what_is_refused_says_that_the_sandbox_did_it(level):
    program = "import multiprocessing as m\nwith m.Pool(2) as p: print(p.map(abs, [-1]))"
    assert "no other processes" in sandbox.execute(program, pool=level).error.splitlines()[-1]


def test_equal_runs_agree_in_every_worker():
    """Names of attributes, sets and default hashes: with seeds of their own, one worker in thousands would agree."""
    program = "print(*{chr(n) * 3 for n in range(97, 123)}, hash('a'), [*{object(): 1 for _ in range(9)}.values()])"
    printed = set()
    for _ in range(2):
        with sandbox.Pool(workers=2) as pool:
            printed |= {sandbox.execute(program, pool=pool).stdout for _ in range(4)}
    assert len(printed) == 1
