"""Whole programs: programs that exhaust or crash, by the status that they must end with; that linger; honest ones."""

# ruff: noqa: E501  (one program, one line)

import sys

EXHAUST: dict[str, dict[str, str]] = {
    "cpu_limit": {
        "spin": "while True: pass",
        "spin in threads": "import threading\ndef f():\n  while True: pass\nfor _ in range(3): threading.Thread(target=f).start()",
        "spin in a regex": "import re; re.match('(a+)+$', 'a' * 60 + 'b')",
        "spin in one long operation": "x = 7 ** (10 ** 9)",
        "spin and catch everything": "while True:\n  try:\n    while True: pass\n  except BaseException: pass",
        "spin, all signals ignored": "import signal\nfor s in range(1, 65):\n  try: signal.signal(s, signal.SIG_IGN)\n  except (OSError, ValueError): pass\n"
        "while True: pass",
        "sort without end": "a = list(range(10 ** 5))\nwhile True: a.sort(key=lambda x: -x); a.reverse()",
        "fill memory and catch it": "a = []\nwhile True:\n  try:\n    while True: a.append(bytearray(1 << 20))\n  except MemoryError: pass",
        "stop itself": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)\nwhile True: pass",
    },
    "timeout": {
        "sleep": "import time; time.sleep(60)",
        "sleep in slices": "import time\nwhile True: time.sleep(0.01)",
        "wait for a lock": "import threading; l = threading.Lock(); l.acquire(); l.acquire()",
        "wait for a pipe": "import os; r, w = os.pipe(); os.read(r, 1)",
        "wait for a thread": "import threading, time\nt = threading.Thread(target=time.sleep, args=(60,)); t.start(); print('TOKEN')",
        "wait at exit": "import atexit, time; atexit.register(time.sleep, 60); print('TOKEN')",
        "suspend": "import signal; signal.pause()",
    },
    "memory_limit": {
        "fill memory with a list": "a = []\nwhile True: a.append('x' * 10 ** 6)",
        "fill memory at once": "a = bytearray(1 << 33)",
        "fill memory by doubling": "a = 'ab'\nwhile True: a += a",
        "fill memory by mapping": "import mmap\na = []\nwhile True:\n  m = mmap.mmap(-1, 1 << 24); m.write(b'x' * (1 << 24)); a.append(m)",
        "fill memory above the limit and go on": "a = bytearray(200 << 20); print('TOKEN')",
        "recurse in C without end": "import sys; sys.setrecursionlimit(10 ** 9)\na, b = [], []\na.append(b); b.append(a)\na == b",
        "compile something deep": "eval('-' * 10 ** 5 + '1')",
    },
    "runtime_error": {
        "fill memory with pipes": "import os\np = []\nwhile True:\n  r, w = os.pipe(); os.set_blocking(w, False); os.write(w, b'x' * 65536); p.append(r)",
        "many threads": "import threading, time\nfor _ in range(5000): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
        "many descriptors": "f = []\nwhile True: f.append(open('/dev/null'))",
        "flood errors": "import sys\nwhile True: sys.stderr.write('x' * 10000)",
        "fill the disk with one file": "f = open('big', 'wb')\nwhile True: f.write(b'x' * 65536)",
        "fill the disk with many files": "i = 0\nwhile True:\n  with open(f'f{i}', 'wb') as f: f.write(b'x' * (1 << 20))\n  i += 1",
        "fill the disk with empty files": "i = 0\nwhile True:\n  open(f'f{i}', 'w').close(); i += 1",
        "nest folders without end": "import os\nwhile True: os.mkdir('d' * 20); os.chdir('d' * 20)",
        "fill the disk in a folder that cannot be listed": "import os\nos.mkdir('k', 0o300); os.chdir('k'); i = 0\nwhile True:\n"
        "  with open(f'f{i}', 'wb') as f: f.write(b'x' * (1 << 20))\n  i += 1",
        "sparse file": "f = open('s', 'wb'); f.truncate(1 << 40); f.seek(1 << 40); f.write(b'x')",
        "recurse without end": "def f(): f()\nf()",
        "segmentation fault": "import ctypes; ctypes.string_at(0)",
        "abort": "import os; os.abort()",
        "crash by bytecode": "import types\nc = (lambda: 0).__code__\nexec(c.replace(co_code=b'\\x64\\xff' * 50, co_consts=()))",
        "trap itself": "import os, signal; signal.signal(5, signal.SIG_DFL); os.kill(os.getpid(), 11); os.abort()",
        "syntax error": "print('TOKEN'",
        "null byte": "print('TOKEN')\0",
        "no such module": "import numpy; print('TOKEN')",
        "exit code": "import sys; print('TOKEN'); sys.exit(3)",
        "error at exit": "print('TOKEN'); import sys; sys.exit('no')",
    },
    "output_limit": {
        "flood output": "while True: print('x' * 10000)",
        "flood output by os.write": "import os\nwhile True: os.write(1, b'x' * 65536)",
        "deep result by printing": "print('[' * 10 ** 7)",
    },
    "wrong_answer": {
        "kill itself": "import os, signal; os.kill(os.getpid(), signal.SIGKILL); print('x')",
    },
    "bad_output": {
        "illegal bytes": "import sys; sys.stdout.buffer.write(b'\\xff\\xfe')",
    },
}

# The first process of a namespace, which a program is at level 3, cannot stop or kill itself.
AT_LEVEL_2 = {"stop itself": "timeout", "kill itself": "runtime_error"}

# A control group ends it as soon as it has too much.
IN_A_GROUP = {"fill memory and catch it": "memory_limit"}

# Interpreters differ in deep parses and in bytecode that no compiler wrote: some end in the other status.
BY_INTERPRETER = {"compile something deep": "runtime_error", "crash by bytecode": "cpu_limit"}
if sys.version_info >= (3, 12):  # recursion in C has a bound of its own
    BY_INTERPRETER["recurse in C without end"] = "runtime_error"

LINGER = {
    "a file in the working folder": ("open('k', 'w').write('1')", "open('k').read()"),
    "a file in the temporary folder": (
        "import tempfile as t; open(t.gettempdir() + '/k', 'w').write('1')",
        "import tempfile as t; open(t.gettempdir() + '/k').read()",
    ),
    "a folder without rights": ("import os; os.mkdir('k', 0); os.chdir('/')", "import os; os.stat('k')"),
    "a deep folder": (
        "import os\nfor _ in range(500): os.mkdir('k'); os.chdir('k')\nopen('x', 'w')",
        "import os; os.stat('k')",
    ),
    "an attribute of a module": ("import math; math.kept = 1", "import math; math.kept"),
    "a patched builtin": ("import builtins; builtins.kept = 1", "kept"),
    "a module": ("import sys; sys.modules['kept'] = sys", "import kept"),
    "an environment variable": ("import os; os.environ['KEPT'] = '1'", "import os; os.environ['KEPT']"),
    "a variable of the C library": (
        "import ctypes; ctypes.CDLL(None).setenv(b'KEPT', b'1', 1)",
        "import ctypes; l = ctypes.CDLL(None); l.getenv.restype = ctypes.c_char_p; l.getenv(b'KEPT').decode()",
    ),
    "the recursion limit": (
        "import sys; sys.setrecursionlimit(7777)",
        "import sys; assert sys.getrecursionlimit() == 7777",
    ),
    "a random state": (
        "import random; random.seed(12345)",
        "import random; a = random.random(); random.seed(12345); assert a == random.random()",
    ),
    "bytes in freed memory": (
        "x = ['needle-' + 'in-a-haystack-%d' % i for i in range(20000)]; del x",
        # What is searched for is not among this program's own constants: the compiler would join two parts of it.
        "import ctypes, re\nmap_at = id(object()) & ~0xFFFFF\n"
        "assert re.search(b'needle-in-a-haystack-19[0-9]', ctypes.string_at(map_at, 1 << 19))",
    ),
    "bytes in its input": (
        "import os; os.pwrite(1, b'kept-output', 0)",
        "import os; assert b'kept' in os.pread(1, 99, 0)",
    ),
    "a signal handler": (
        "import signal; signal.signal(10, lambda *a: 0)",
        "import signal; assert callable(signal.getsignal(10))",
    ),
    "the mask": ("import os; os.umask(0o077)", "import os; assert os.umask(0) == 0o077"),
    "a thread": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1,), daemon=True, name='kept').start()",
        "import threading; assert [t for t in threading.enumerate() if t.name == 'kept']",
    ),
}

HONEST: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "input": ("n = int(input())\nprint(n + 1)", [("1\n", "2"), ("41\n", "42")]),
    "input with a prompt": ("n = input('')\nprint(n)", [("x", "x")]),
    "sys.stdin.read": ("import sys\nprint(sum(map(int, sys.stdin.read().split())))", [("1 2\n3", "6"), ("", "0")]),
    "sys.stdin lines": ("import sys\nfor l in sys.stdin: print(l.strip()[::-1])", [("ab\ncd\n", "ba\ndc\n")]),
    "readline": ("import sys\ninput = sys.stdin.readline\nprint(int(input()) * int(input()))", [("6\n7\n", "42\n")]),
    "stdin.buffer": ("import sys\nprint(len(sys.stdin.buffer.read()))", [("äö", "4"), ("abc\n", "4")]),
    "open(0)": ("print(*sorted(open(0).read().split()))", [("b a", "a b"), ("d c", "c d")]),
    "os.read": ("import os\nprint(os.read(0, 100).decode().upper())", [("x", "X"), ("y", "Y")]),
    "/dev/stdin": ("print(open('/dev/stdin').read().strip())", [("x", "x"), ("y", "y")]),
    "fileinput": ("import fileinput\nprint(sum(1 for _ in fileinput.input()))", [("a\nb\n", "2"), ("", "0")]),
    "never reads": ("print('hello')", [("x" * 100000, "hello")]),
    "large input": ("import sys\nprint(len(sys.stdin.read()))", [("x" * 3_000_000, "3000000")]),
    "large output": ("print('\\n'.join(map(str, range(100000))))", [("", "\n".join(map(str, range(100000))))]),
    "fast output": (
        "import sys, io, os, atexit\nbuf = io.BytesIO()\nsys.stdout = io.TextIOWrapper(buf, 'utf-8', write_through=True)\n"
        "atexit.register(lambda: os.write(1, buf.getvalue()))\nprint(input())",
        [("a", "a"), ("b", "b")],
    ),
    "unclosed writer": ("out = open(1, 'w')\nprint(input(), file=out)", [("a", "a"), ("b", "b")]),
    "main guard": ("def main():\n  print(int(input()) ** 2)\nif __name__ == '__main__':\n  main()", [("9", "81")]),
    "exit after output": ("import sys\nprint(input())\nsys.exit(0)", [("a", "a"), ("b", "b")]),
    "exit by os._exit": ("import os, sys\nprint(input()); sys.stdout.flush(); os._exit(0)", [("a", "a"), ("b", "b")]),
    "quit": ("print(input())\nraise SystemExit", [("a", "a")]),
    "deep recursion": (
        "import sys\nsys.setrecursionlimit(10 ** 6)\ndef f(n): return 0 if n == 0 else 1 + f(n - 1)\nprint(f(10 ** 5))",
        [("", "100000")],
    ),
    "deep recursion in a thread": (
        "import sys, threading\nsys.setrecursionlimit(10 ** 6); threading.stack_size(1 << 27)\n"
        "def f(n): return 0 if n == 0 else 1 + f(n - 1)\ndef main(): print(f(50000))\n"
        "t = threading.Thread(target=main); t.start(); t.join()",
        [("", "50000")],
    ),
    "deep recursion in C": (
        "import sys, json\nsys.setrecursionlimit(10 ** 6)\na = []\nfor _ in range(20000): a = [a]\nprint(len(repr(a)))",
        [("", "40002")],
    ),
    "threads": (
        "from concurrent.futures import ThreadPoolExecutor as T\nwith T(8) as t: print(sum(t.map(lambda x: x * x, range(100))))",
        [("", "328350"), ("", "328350")],
    ),
    "asyncio": (
        "import asyncio\nasync def f(i):\n  await asyncio.sleep(0.001); return i\n"
        "async def main(): print(sum(await asyncio.gather(*map(f, range(10)))))\nasyncio.run(main())",
        [("", "45"), ("", "45")],
    ),
    "standard library": (
        "import collections, heapq, itertools, json, re, decimal, fractions, statistics, datetime, random, threading\n"
        "import dataclasses, typing, bisect, functools, math, string, operator, copy, enum, queue, textwrap, hashlib\n"
        "import zlib, base64, struct, array, csv, io, pprint, types, abc, contextlib, time, calendar, uuid, secrets\n"
        "import unittest, logging, pathlib, pickle, weakref, numbers, cmath, difflib, locale, shutil, glob, sqlite3\n"
        "import urllib.parse, html, xml.etree.ElementTree, argparse, platform, graphlib, zoneinfo, bz2, lzma, select\n"
        "print(json.dumps({'a': [1, 2.5, None]}), decimal.Decimal('0.1') + decimal.Decimal('0.2'))",
        [("", '{"a": [1, 2.5, null]} 0.3')],
    ),
    "time zone": (
        "import zoneinfo, datetime as d\nprint(d.datetime(2024, 7, 1, tzinfo=zoneinfo.ZoneInfo('Europe/Berlin')).utcoffset())",
        [("", "2:00:00")],
    ),
    "files in scratch": (
        "import tempfile, os\nopen('a.txt', 'w').write('hi')\nwith tempfile.NamedTemporaryFile('w+') as f:\n"
        "  f.write(open('a.txt').read()); f.seek(0); print(f.read(), os.path.exists('a.txt'))",
        [("", "hi True"), ("", "hi True")],
    ),
    "folders in scratch": (
        "import tempfile, os, shutil\nwith tempfile.TemporaryDirectory() as d:\n  os.mkdir(d + '/x'); open(d + '/x/y', 'w').close()\n"
        "  os.rename(d + '/x/y', d + '/z'); print(sorted(os.listdir(d)))",
        [("", "['x', 'z']")],
    ),
    "exclusive file": ("open('once', 'x').write('1')\nprint('ok')", [("", "ok"), ("", "ok"), ("", "ok")]),
    "global state": (
        "import math\nassert not hasattr(math, 'seen')\nmath.seen = 1\nprint('ok')",
        [("", "ok"), ("", "ok")],
    ),
    "floats": ("print(2 ** 0.5, 0.1 + 0.2, 1e-7)", [("", "1.414214 0.3 1e-07")]),
    "float rounding": ("print(f'{1/3:.10f}')", [("", "0.3333333333")]),
    "unicode": ("print(input()[::-1])\nprint('é', '漢', '🙂')", [("añb", "bña\né 漢 🙂")]),
    "trailing space": ("print('a ', 'b ')\nprint()", [("", "a  b")]),
    "big integers": ("print(len(str(7 ** 4000)), 2 ** 100)", [("", "3381 1267650600228229401496703205376")]),
    "classes": (
        "import dataclasses, typing\n@dataclasses.dataclass(order=True)\nclass P:\n  x: int\n  y: typing.List[int] = "
        "dataclasses.field(default_factory=list)\nprint(max(P(1), P(2, [3])))",
        [("", "P(x=2, y=[3])")],
    ),
    "named tuples and enums": (
        "import typing, enum\nclass E(enum.Enum):\n  A = 1\nclass N(typing.NamedTuple):\n  a: int\nprint(N(3), E.A)",
        [("", "N(a=3) E.A")],
    ),
    "pickling its own class": (
        "import pickle, copy\nclass A:\n  def __init__(s): s.v = 3\nprint(pickle.loads(pickle.dumps(A())).v, copy.deepcopy(A()).v)",
        [("", "3 3")],
    ),
    "CPU for a while": (
        "s = 0\nfor i in range(1_000_000): s += i\nprint(s)",
        [("", "499999500000"), ("", "499999500000")],
    ),
    "short sleep": ("import time; time.sleep(0.05); print('ok')", [("", "ok"), ("", "ok")]),
    "memory in bounds": ("a = bytearray(60 << 20); print(len(a) >> 20)", [("", "60"), ("", "60")]),
    "warnings on stderr": (
        "import sys, warnings\nwarnings.warn('x'); print('e', file=sys.stderr); print('ok')",
        [("", "ok")],
    ),
    "signals to itself": (
        "import signal, time\nsignal.signal(signal.SIGALRM, lambda *a: print('rang'))\nsignal.setitimer(0, 0.02); time.sleep(0.1)",
        [("", "rang")],
    ),
    "catches its own errors": ("try: 1 / 0\nexcept ZeroDivisionError as e: print(e)", [("", "division by zero")]),
    "a larger stack": (
        "import resource, sys\nresource.setrlimit(resource.RLIMIT_STACK, (-1, -1)); sys.setrecursionlimit(10 ** 6)\n"
        "def f(n): return 0 if n == 0 else 1 + f(n - 1)\nprint(f(int(input())))",
        [("20000", "20000"), ("5", "5")],
    ),
    "integers of any length": ("n = int(input())\nprint(n + 1)", [("9" * 5000, "1" + "0" * 5000)]),
    "many tests": ("print(int(input()) % 7)", [(str(i), str(i % 7)) for i in range(60)]),
    "exec and eval": ("exec('x = 3'); print(eval('x + 1'), [*map(lambda y: y + x, [1])])", [("", "4 [4]")]),
    "closed stdout": ("import sys\nprint('a'); sys.stdout.close()", [("", "a"), ("", "a")]),
    "sub-interpreter free generators": (
        "def g():\n  try: yield 1\n  finally: print('end')\nit = g(); print(next(it)); it.close()",
        [("", "1\nend")],
    ),
}
