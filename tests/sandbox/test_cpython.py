"""Programs print in the sandbox what they print in a plain interpreter, which runs each of them as a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from verizero import sandbox

pytestmark = pytest.mark.run  # workers of the sandbox, and interpreters
LEVEL_2 = ["landlock", "seccomp", "uid"]

PROGRAMS: dict[str, tuple[str, str]] = {
    "exit": ("n = int(input())\nif n < 10:\n    print('small')\n    exit()\nprint('big')", "5\n"),
    "quit with a code": ("print('small')\nquit(0)\nprint('no')", ""),
    "copies of files": (
        "import os, shutil\nopen('a', 'w').write('x')\nshutil.copy2('a', 'b'); shutil.copy('b', 'c'); os.mkdir('d')\n"
        "shutil.move('c', 'd'); print(shutil.copytree('d', 'e'), os.listdir('e'), open('e/c').read())",
        "",
    ),
    "exit that is caught": ("try:\n    print('YES')\n    exit()\nexcept Exception:\n    print('NO')", ""),
    "exit shown": ("print(exit, quit, repr(help), type(license).__name__, sorted(vars(__builtins__))[:5])", ""),
    "streams": (
        "import sys\nfor s in (sys.stdin, sys.stdout, sys.stderr): print(s, s.mode, s.name, s.errors, s.buffer.mode,"
        " s.buffer.name, s.buffer.raw, s.line_buffering, s.fileno(), s.isatty())",
        "x",
    ),
    "fast reader": (
        "import os, sys, io\nclass Fast(io.IOBase):\n    def __init__(self, file):\n        self.fd = file.fileno()\n"
        "        self.buffer = io.BytesIO()\n        self.writable = 'x' in file.mode or 'r' not in file.mode\n"
        "    def read(self):\n        return os.read(self.fd, 1 << 16)\nprint(Fast(sys.stdin).read().split())",
        "1 2\n",
    ),
    "another encoding": ("import sys\nsys.stdin.reconfigure(encoding='latin-1')\nprint(ascii(input()))", "é\n"),
    "other errors": (
        "import sys\nsys.stdin.reconfigure(errors='replace', newline='\\n')\nsys.stdout.reconfigure(encoding='ascii')\n"
        "print(input())",
        "a\n",
    ),
    "reconfigured too late": (
        "import sys, io\ninput()\ntry: sys.stdin.reconfigure(encoding='latin-1')\n"
        "except io.UnsupportedOperation as e: print(e)",
        "a\nb\n",
    ),
    "destructors": (
        "count = 3\nclass A:\n    def __init__(self, name): self.name = name\n"
        "    def __del__(self): print('bye', self.name, count, len(held))\n"
        "held = [1]\na = A('a')\nb = A('b'); b.me = b\nprint('last line')",
        "",
    ),
    "generators that are open": (
        "def g():\n    try: yield 1\n    finally: print('closed')\nit = g()\nprint(next(it))",
        "",
    ),
    "a file at the end": ("out = open(1, 'w', closefd=False)\nprint('first')\nout.write('second')", ""),
    "paths of streams": (
        "a = open('/dev/stdin').read()\nprint('to be seen', file=open('/dev/stderr', 'w'))\n"
        "with open('/dev/stdout', 'w') as f: f.write(a[::-1])",
        "abc",
    ),
    "locks of processes": (
        "import multiprocessing as m, multiprocessing.dummy, multiprocessing.pool\n"
        "lock, again, few = m.Lock(), m.RLock(), m.BoundedSemaphore(2)\n"
        "with lock: print(lock, lock.acquire(False), lock.acquire(timeout=0.01))\n"
        "with again, again: print(again, few.acquire(), few.acquire(block=False), few.acquire(False), few)\n"
        "for release in (lock.release, again.release):\n"
        "    try: release()\n"
        "    except (ValueError, AssertionError) as e: print(type(e), e)\n"
        "event, queue = m.Event(), m.Queue()\nqueue.put(5); event.set(); print(queue.get(), event.wait(1))\n"
        "with m.dummy.Pool(3) as pool: print(sum(pool.map(abs, range(-9, 0))))",
        "",
    ),
    "a mark at the begin": ("\ufeffprint('marked')", ""),
    "sets": ("print({'a', 'b', 'c'}, sorted(set('hello world')), hash('verizero'), {frozenset('ab'), 'x'})", ""),
}

LAST_OUTPUTS = [json.loads(line) for line in Path(__file__).with_name("last_outputs.jsonl").read_text().splitlines()]
"""Programs whose output is flushed at their end: by own streams, files, exit handlers and finalizers."""
IMPORTS = "import sys, os, io, atexit, threading, builtins, contextlib\n"
PROGRAMS |= {row["name"]: (IMPORTS + row["program"], "") for row in LAST_OUTPUTS}


@pytest.fixture(scope="module", params=[list(sandbox.WALLS), LEVEL_2], ids=["level3", "level2"])
def pool(request: pytest.FixtureRequest) -> Iterator[sandbox.Pool]:
    with sandbox.Pool(workers=1, walls=request.param) as made:
        yield made


def by_cpython(program: str, stdin: str, folder: Path) -> bytes:
    """Return what the program prints under a plain interpreter with the sandbox's hash seed and encoding."""
    (folder / "main.py").write_text(program, encoding="utf-8")
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "PYTHONUNBUFFERED": ""}
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=folder, input=stdin.encode(), capture_output=True, env=environment, check=False
    )
    return done.stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_prints_what_it_prints_elsewhere(pool: sandbox.Pool, name: str, tmp_path: Path) -> None:
    program, stdin = PROGRAMS[name]
    expected = by_cpython(program, stdin, tmp_path).decode()
    assert expected, "the plain interpreter must run it"
    result = sandbox.run(program, [{"input": stdin, "output": expected}] * 3, pool=pool)
    assert result.passed, (result.tests[0], expected)


def test_values_that_processes_would_share_need_a_folder_of_the_runs_own(pool: sandbox.Pool) -> None:
    program = "import multiprocessing as m\nv = m.Value('i', 3)\nwith v.get_lock(): v.value += 1\nprint(v.value)"
    result = sandbox.run(program, [{"input": "", "output": "4"}] * 2, pool=pool)
    assert result.passed if pool.isolation.level == 3 else "/dev/shm" in result.error, result


def test_what_is_refused_says_that_the_sandbox_did_it(pool: sandbox.Pool) -> None:
    program = "import multiprocessing as m\nwith m.Pool(2) as p: print(p.map(abs, [-1]))"
    assert "no other processes" in sandbox.execute(program, pool=pool).error.splitlines()[-1]


def test_equal_runs_agree_in_every_worker() -> None:
    """Names of attributes, sets and default hashes: with seeds of their own, one worker in thousands would agree."""
    program = "print(*{chr(n) * 3 for n in range(97, 123)}, hash('a'), [*{object(): 1 for _ in range(9)}.values()])"
    printed = set()
    for _ in range(2):
        with sandbox.Pool(workers=2) as pool:
            printed |= {sandbox.execute(program, pool=pool).stdout for _ in range(4)}
    assert len(printed) == 1
