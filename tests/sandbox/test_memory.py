"""Cheap forks of a worker: code and data in huge pages, joined mappings, and objects that lie close together."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from verizero import sandbox
from verizero.sandbox.process import interpreters
from verizero.sandbox.worker import huge_pages, memory

pytestmark = pytest.mark.integration  # workers of the sandbox

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


def test_a_stretch_is_of_one_file_and_ends_at_a_writable_mapping():
    rows = memory.parse(LISTING)
    for address, start, end in (
        (0x500010, 0x400000, 0xA00000), (0x400000, 0x400000, 0xA00000), (0xB00000, 0xB00000, 0xC00000),
        (0xCFFFFF, 0xC00000, 0xD00000), (0xF00000, 0xF00000, 0xF10000),
    ):  # fmt: skip
        assert huge_pages.stretch(rows, address) == (start, end)
    for address in (0, 0xA00000, 0xD00000, 0xE80000, 0x7FFC0000):  # nothing, written to, or no file
        assert huge_pages.stretch(rows, address) == (0, 0)


def bare_interpreter(code: str) -> dict[str, object]:
    """Return the JSON that a bare interpreter prints. It can import the worker's modules."""
    here = str(Path(sandbox.__file__).parent)
    command = [interpreters()[0], "-I", "-S", "-c", f"import sys; sys.path.append({here!r})\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_an_interpreter_runs_on_from_the_copy_of_its_code():
    told = bare_interpreter(
        "import ctypes, json, re\n"
        "from worker import huge_pages, memory\n"
        "where = ctypes.cast(ctypes.pythonapi.Py_GetVersion, ctypes.c_void_p).value\n"
        "low, high = huge_pages.stretch(memory.mappings(), where)\n"
        "first, end = -(-low // huge_pages.HUGE) * huge_pages.HUGE, high // huge_pages.HUGE * huge_pages.HUGE\n"
        "moved = huge_pages.move_code()\n"
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


def test_an_interpreter_runs_on_from_the_copy_of_its_data():
    """Moved twice, as after a run that used up its memory; the second time from the huge pages of the first."""
    told = bare_interpreter(
        "import gc, json, os\n"
        "from worker import huge_pages\n"
        "maps = os.open('/proc/self/maps', os.O_RDONLY)\n"
        "kept = {i: [i, str(i), (float(i),)] for i in range(50_000)}\n"
        "gc.disable()\n"
        "moved = [huge_pages.move_data(maps), huge_pages.move_data(maps)]\n"
        "objects = len(gc.get_objects())\n"
        "for _ in range(20): huge_pages.move_data(maps)\n"
        "garbage = len(gc.get_objects()) - objects\n"
        "kept.update((i, [i, str(i), (float(i),)]) for i in range(40_000, 60_000))\n"
        "same = all(kept[i] == [i, str(i), (float(i),)] for i in range(60_000))\n"
        "rows = [line.split() for line in open('/proc/self/maps')]\n"
        "spans = [(r[-1], [int(x, 16) for x in r[0].split('-')]) for r in rows if r[1] == 'rw-p']\n"
        "files = [n for n, (low, high) in spans if 'libpython' in n and high - low >= 1 << 19]\n"
        "print(json.dumps(dict(moved=moved, same=same, files=files, garbage=garbage)))"
    )
    first, second = told["moved"]  # type: ignore[misc]
    assert first > 5 << 20, told
    assert second >= first - (1 << 20)
    assert told["same"]
    assert told["files"] == []
    assert told["garbage"] == 0  # the forker collects none


def test_what_is_called_in_a_row_is_called_in_order_without_the_interpreter():
    told = bare_interpreter(
        "import ctypes, json\n"
        "from worker import huge_pages\n"
        "text, room = ctypes.create_string_buffer(b'abcdefgh', 32), ctypes.create_string_buffer(1 << 18)\n"
        "at = ctypes.addressof(text)\n"
        "calls = [('memcpy', (at + 8, at, 8)), ('memcpy', (at, at + 10, 2)), ('memcpy', (at + 16, at, 8))]\n"
        "huge_pages._call_in_a_row(-(-ctypes.addressof(room) // 64) * 64, calls)\n"
        "print(json.dumps(dict(text=text.value.decode())))"
    )
    assert told["text"] == "cdcdefgh" + "abcdefgh" + "cdcdefgh"


def test_a_library_is_one_stretch_of_code_and_one_of_data():
    told = bare_interpreter(
        "import ctypes, json, math, select\n"
        "from worker import memory\n"
        "def mappings(): return [x.split()[1] for x in open('/proc/self/maps') if '/select.' in x]\n"
        "before, joined, after = mappings(), memory.join_libraries(), mappings()\n"
        "print(json.dumps(dict(before=before, joined=joined, after=after, root=math.sqrt(4))))"
    )
    joined = told["joined"]
    assert isinstance(joined, int)
    assert joined >= 9, told  # of libc, the loader and the modules, at least
    assert len(told["before"]) > 2  # type: ignore[arg-type]
    assert told["after"] == ["r-xp", "rw-p"], told
    assert told["root"] == 2.0


def test_objects_made_together_lie_close_once_holes_are_filled():
    told = bare_interpreter(
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


def test_what_is_renewed_lies_together_and_does_what_it_did():
    told = bare_interpreter(
        "import json, random\n"
        "from functools import partial\n"
        "from worker import memory\n"
        "old = [partial(bytes(n).find) for n in random.Random(0).choices(range(400), k=20000)]\n"
        "space = {f'p{i}': partial(max, i) for i in range(20)} | {'f': lambda x, y=2: x * y, 'n': 7}\n"
        "old = [x for i, x in enumerate(old) if i % 3]\n"
        "was = dict(space)\n"
        "memory.fill_holes()\n"
        "memory.renew(space, ('f',))\n"
        "pages = len({id(x) >> 12 for n, x in space.items() if n[0] == 'p'})\n"
        "new = [n for n in space if space[n] is not was[n]]\n"
        "values = [space['p3'](1), space['p3'](5), space['f'](4), space['n']]\n"
        "print(json.dumps(dict(pages=pages, new=len(new), values=values)))"
    )
    pages = told.pop("pages")
    assert isinstance(pages, int)
    assert pages <= 2
    assert told == {"new": 21, "values": [3, 5, 8, 7]}


def test_a_worker_runs_from_large_pages():
    with sandbox.Pool(workers=1) as pool:
        assert sandbox.run("print(1)", [{"input": "", "output": "1"}], pool=pool).passed
        (worker,) = pool._all
        lines = Path(f"/proc/{worker.process.pid}/maps").read_text().splitlines()
    spans = [x.split()[0].split("-") for x in lines if "r-xp" in x and len(x.split()) == 5]
    sizes = [int(high, 16) - int(low, 16) for low, high in spans]
    assert any(size and size % huge_pages.HUGE == 0 for size in sizes), lines


def test_data_is_made_large_again_when_a_run_has_used_up_its_memory():
    """The kernel may have split the pages when it needed memory."""
    hungry = "a = []\nwhile True: a.append(bytearray(1 << 20))"
    limits = sandbox.Limits(memory_mib=64)
    with sandbox.Pool(workers=1) as pool:
        for _ in range(3):
            assert sandbox.run(hungry, [{"input": "", "output": ""}], limits=limits, pool=pool).status == "memory_limit"
            assert sandbox.run("print(input())", [{"input": "x", "output": "x"}], pool=pool).passed
        (worker,) = pool._all
        pid = worker.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        listings = [Path(f"/proc/{child}/maps").read_text().splitlines() for child in children]
    for lines in listings:
        data = [x.split()[0].split("-") for x in lines if "rw-p" in x and "libpython" in x]
        assert all(int(high, 16) - int(low, 16) < 1 << 19 for low, high in data), data
