"""What makes forks of a worker cheap: code in large pages, and objects that lie close together."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import sandbox
from sandbox.process import interpreters
from sandbox.worker import memory

LISTING = """\
400000-500000 r--p 00000000 08:01 11  /opt/lib/libpython3.so
500000-900000 r-xp 00100000 08:01 11  /opt/lib/libpython3.so
900000-a00000 r--p 00500000 08:01 11  /opt/lib/libpython3.so
a00000-b00000 rw-p 00600000 08:01 11  /opt/lib/libpython3.so
b00000-c00000 r--p 00000000 08:01 12  /opt/lib/a name with blanks.so
c00000-d00000 r-xp 00000000 08:01 13  /opt/lib/other.so
d00000-e00000 r-xp 00000000 00:00 0
f00000-f10000 r--p 00000000 08:01 13  /opt/lib/other.so
7ffc0000-7ffd0000 r-xp 00000000 00:00 0  [vdso]
"""


def test_a_stretch_is_one_files_and_ends_where_it_is_written_to():
    assert memory.stretch(LISTING, 0x500010) == (0x400000, 0xA00000)
    assert memory.stretch(LISTING, 0x400000) == (0x400000, 0xA00000)
    assert memory.stretch(LISTING, 0xB00000) == (0xB00000, 0xC00000)
    assert memory.stretch(LISTING, 0xCFFFFF) == (0xC00000, 0xD00000)
    assert memory.stretch(LISTING, 0xF00000) == (0xF00000, 0xF10000)


def test_no_stretch_where_nothing_or_no_file_or_something_written_is():
    for address in (0, 0xA00000, 0xD00000, 0xE80000, 0x7FFC0000):
        assert memory.stretch(LISTING, address) == (0, 0)


def said(code: str) -> dict[str, object]:
    """What a bare interpreter prints as JSON; the worker's modules can be imported."""
    here = str(Path(sandbox.__file__).parent)
    command = [interpreters()[0], "-I", "-S", "-c", f"import sys; sys.path.append({here!r})\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_an_interpreter_runs_on_from_the_copy_of_its_code():
    told = said(
        "import ctypes, json, re\n"
        "from worker import memory\n"
        "where = ctypes.cast(ctypes.pythonapi.Py_GetVersion, ctypes.c_void_p).value\n"
        "low, high = memory.stretch(open('/proc/self/maps').read(), where)\n"
        "first, end = -(-low // memory.LARGE) * memory.LARGE, high // memory.LARGE * memory.LARGE\n"
        "moved = memory.make_code_large()\n"
        "rows = [line.split() for line in open('/proc/self/maps')]\n"
        "spans = [(*(int(x, 16) for x in r[0].split('-')), r[1], len(r)) for r in rows]\n"
        "held = [s for s in spans if first < end and s[0] <= first and end <= s[1]]\n"
        "try:\n    1 / 0\nexcept ZeroDivisionError as exc:\n    error = str(exc)\n"
        "found = re.sub('a+', 'b', 'caab')\n"
        "room = max(0, end - first)\n"
        "print(json.dumps(dict(moved=moved, room=room, held=held, error=error, found=found)))"
    )
    assert told["moved"] == told["room"]
    assert (told["error"], told["found"]) == ("division by zero", "cbb")
    if told["room"]:
        ((_, _, mode, words),) = told["held"]  # one mapping, of no file
        assert (mode, words) == ("r-xp", 5)


def test_a_library_has_one_stretch_of_data():
    told = said(
        "import ctypes, json, math, select\n"
        "from worker import memory\n"
        "def mappings(): return sum('.so' in line for line in open('/proc/self/maps'))\n"
        "before, joined, after = mappings(), memory.join_data(), mappings()\n"
        "print(json.dumps(dict(before=before, joined=joined, after=after, root=math.sqrt(4))))"
    )
    joined = told["joined"]
    assert isinstance(joined, int)
    assert joined >= 3, told  # of libc, the loader and the modules, at least
    assert told["before"] - told["after"] > joined // 2, told  # type: ignore[operator]
    assert told["root"] == 2.0


def test_objects_made_together_lie_close_once_holes_are_filled():
    told = said(
        "import json, random\n"
        "from worker import memory\n"
        "old = [bytes(n) for n in random.Random(0).choices(range(16, 400), k=20000)]\n"
        "old = [x for i, x in enumerate(old) if i % 3]  # leaves holes everywhere\n"
        "sizes = [n for n in range(20, 400, 16) for _ in range(4)]\n"
        "pages = lambda: len({id(x) >> 12 for x in [bytes(n) for n in sizes]})\n"
        "before = pages()\n"
        "memory.fill_holes()\n"
        "print(json.dumps(dict(before=before, after=pages(), sizes=len(set(sizes)))))"
    )
    assert told["after"] < told["before"]
    assert told["after"] <= 2 * told["sizes"]


def test_a_worker_runs_from_large_pages():
    with sandbox.Pool(workers=1) as pool:
        assert sandbox.run("print(1)", [{"input": "", "output": "1"}], pool=pool).passed
        (worker,) = pool._all
        lines = Path(f"/proc/{worker.process.pid}/maps").read_text().splitlines()
    spans = [x.split()[0].split("-") for x in lines if "r-xp" in x and len(x.split()) == 5]
    sizes = [int(high, 16) - int(low, 16) for low, high in spans]
    assert any(size and size % memory.LARGE == 0 for size in sizes), lines
