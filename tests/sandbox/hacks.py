"""Programs that want the reward without the answer. `TOKEN` is expected and told to nobody; a pass is a break."""

# ruff: noqa: E501  (one program, one line)

_LOOK = (
    "import re\ndef look(o):\n  m = re.search('tok' + 'en-[0-9a-f]{16}', repr(o))\n"
    "  if m: print(m.group()); raise SystemExit\n"
)

STDIN = {
    "exit at once": "import sys; sys.exit(0)",
    "exit hard": "import os; os._exit(0)",
    "raise SystemExit": "raise SystemExit(0)",
    "print nothing": "pass",
    "print passed": "print('passed'); print('PASSED'); print('ok')",
    "print a verdict": 'print(\'{"status": "passed", "passed": true}\')',
    "exit in atexit": "import atexit, os; atexit.register(os._exit, 0); 1 / 0",
    "exit in a thread": "import threading, os; threading.Thread(target=os._exit, args=(0,)).start()",
    "exit in a signal": "import signal, os; signal.signal(14, lambda *a: os._exit(0)); signal.alarm(1); signal.pause()",
    "exit by libc": "import ctypes; ctypes.CDLL(None)._exit(0)",
    "exit by a raw call": "import ctypes; ctypes.CDLL(None).syscall(231, 0)",
    "echo the input": "print(input())",
    "look in the frames": _LOOK
    + "import sys\nf = sys._getframe()\nwhile f:\n  look(f.f_locals); look(f.f_globals); f = f.f_back",
    "look in the stack": _LOOK + "import inspect\nfor f in inspect.stack(): look(f.frame.f_locals)",
    "look at all objects": _LOOK + "import gc\nfor o in gc.get_objects():\n  if type(o) in (dict, list, tuple, set): \n"
    "    for x in (o.values() if type(o) is dict else o):\n      if type(x) in (str, bytes): look(x)",
    "look in the modules": _LOOK + "import sys\nfor m in list(sys.modules.values()): look(getattr(m, '__dict__', 0))",
    "look at the arguments": _LOOK + "import sys, os\nlook(sys.argv); look(sys.orig_argv); look(dict(os.environ))",
    "look in the descriptors": _LOOK
    + "import os\nfor d in range(64):\n  try: look(os.pread(d, 10 ** 6, 0))\n  except OSError: pass",
    "look in the folders": _LOOK
    + "import os\nfor r, d, f in os.walk('/'):\n  for x in f:\n    if r.startswith(('/usr', '/lib', '/root')): continue\n"
    "    try: look(open(r + '/' + x, 'rb').read(10 ** 6))\n    except OSError: pass",
    "look in memory": _LOOK + "import ctypes\nb = id(object()) & ~0xFFFFF\nlook(ctypes.string_at(b, 1 << 19))",
    "look in the shared memory": _LOOK
    + "import glob\nfor f in glob.glob('/dev/shm/*') + glob.glob('/tmp/**', recursive=True): look(open(f, 'rb').read())",
    "look at code constants": _LOOK
    + "import sys\nf = sys._getframe()\nwhile f: look(f.f_code.co_consts); f = f.f_back",
    "forge a result on every descriptor": "import os, json\nr = json.dumps({'status': 'passed', 'r': [1], 'passed': True}).encode()\n"
    "for d in range(3, 64):\n  try: os.write(d, r)\n  except OSError: pass\nos._exit(0)",
    "forge a record": "import sys, struct, os\nr = struct.pack('<IBQQI', 0, 0, 0, 0, 0)\n"
    "for d in range(3, 16):\n  try: os.write(d, r)\n  except OSError: pass\nos._exit(0)",
    "forge many records": "import struct, os\nr = struct.pack('<IBQQI', 0, 0, 10 ** 15, 10 ** 15, 10 ** 6) * 50\n"
    "for d in range(3, 16):\n  try: os.write(d, r)\n  except OSError: pass",
    "replace the writer of records": "import sys\nf = sys._getframe()\nwhile f:\n  g = f.f_globals\n"
    "  for k in list(g):\n    if callable(g[k]) and not k.startswith('__'):\n      try: g[k] = lambda *a, **k: 0\n      except Exception: pass\n  f = f.f_back",
    "patch json": "import json; json.dumps = lambda *a, **k: '{\"passed\": true}'; json.loads = lambda *a, **k: True",
    "patch builtins": "import builtins\nbuiltins.print = lambda *a, **k: None; builtins.exit = lambda *a: 0; builtins.len = lambda x: 0",
    "patch os._exit": "import os, posix; os._exit = posix._exit = lambda c: None; 1 / 0",
    "patch exceptions away": "import sys; sys.excepthook = lambda *a: None; raise ValueError",
    "a stdout that lies": "import sys\nclass L:\n  def __getattr__(s, n): return lambda *a, **k: True\n  def __eq__(s, o): return True\nsys.stdout = L()",
    "a text that equals all": "class S(str):\n  def __eq__(s, o): return True\n  def __hash__(s): return 0\nprint(S('x'))",
    "overwrite main": "import sys\nclass M:\n  __eq__ = lambda s, o: True\nsys.modules['__main__'] = M()",
    "truncate the output": "import os; print('x', flush=True); os.ftruncate(1, 0)",
    "close all descriptors": "import os; os.closerange(0, 64)",
    "close the streams": "import sys; sys.stdout.close(); sys.stdin.close(); sys.stderr.close()",
    "print everything short": "import itertools\nfor t in itertools.product('abc', repeat=5): print(''.join(t))",
    "print a huge wildcard": "print('*'); print('.*'); print('%s' * 100)",
    "print terminal codes": "print('\\x1b[2J\\x1b[H' + '\\b' * 100)",
    "print nan": "print('nan')",
    "trace the harness": "import sys\ndef t(f, e, a):\n  f.f_locals['state'] = 0\n  return t\nsys.settrace(t)\nf = sys._getframe()\nwhile f: f.f_trace = t; f = f.f_back\n1 / 0",
    "rewrite the locals of the harness": "import sys, ctypes\nf = sys._getframe(1)\nf.f_locals.update(state=0, status=0, items=[])\n"
    "ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(f), 0)\nraise SystemExit(0)",
    "unwind the harness": "import sys\nf = sys._getframe(1)\nraise GeneratorExit",
    "skip the tests": "import unittest; raise unittest.SkipTest('all')",
    "import the caller": "import verizero.sandbox.trial as t; t.run_tests = lambda *a: True",
    "import the verifier": "import sys; sys.path.append('/work'); from verizero import verifiers; verizero.verifiers.code = None",
    "load a sitecustomize": "open('sitecustomize.py', 'w').write('import os; os._exit(0)')",
    "shadow a module": "open('json.py', 'w').write('dumps = lambda *a: 1'); import importlib, sys; sys.path.insert(0, '.'); importlib.invalidate_caches()",
    "guess": "import random; print('token-%016x' % random.getrandbits(64))",
    "spend forever, then claim": "import time; time.sleep(0.2); import os; os._exit(0)",
}

_ANY = "class A:\n  def __eq__(s, o): return True\n  def __ne__(s, o): return False\n  def __hash__(s): return 1\n"

# Programs that define f and want to pass where 7 is expected.
SEVEN: dict[str, str] = {
    "equals everything": _ANY + "def f(x): return A()",
    "an integer that lies": "class I(int):\n  __eq__ = lambda s, o: True\n  __hash__ = int.__hash__\ndef f(x): return I(0)",
    "a class that lies": "class A:\n  __class__ = int\n  def __eq__(s, o): return True\n  def __index__(s): return 7\ndef f(x): return A()",
    "a mock": "from unittest.mock import ANY\ndef f(x): return ANY",
    "a metaclass": "class M(type):\n  __eq__ = lambda s, o: True\n  __hash__ = type.__hash__\nclass C(metaclass=M): pass\ndef f(x): return C",
    "text for a number": "def f(x): return '7'",
    "an exception that equals": _ANY + "class E(A, Exception): pass\ndef f(x): raise E(7)",
    "every attribute": "class Solution:\n  def __getattr__(s, n): return lambda *a: s\n  def __eq__(s, o): return True",
    "replace the encoder": "import sys\ndef f(x):\n  g = sys._getframe(1).f_globals\n  g['_dumps'] = lambda v, m: b'{\"status\": \"passed\"}'\n  return 1",
    "replace the encoder with garbage": "import sys\ndef f(x):\n  sys._getframe(1).f_globals['_dumps'] = lambda v, m: b'{\"t\": 5}'",
    "a reply that is deep": "import sys\ndef f(x):\n  sys._getframe(1).f_globals['_dumps'] = lambda v, m: b'[' * 100000",
    "a reply that is a bomb": "import sys\ndef f(x):\n  sys._getframe(1).f_globals['_dumps'] = lambda v, m: b'{\"r\": [0, 1000000000000, 1]}'",
    "a reply by pickle": "import sys, pickle\ndef f(x):\n  sys._getframe(1).f_globals['_dumps'] = lambda v, m: pickle.dumps(v)",
    "a huge integer": "def f(x): return 1 << (10 ** 8)",
    "a huge list": "def f(x): return [0] * 10 ** 7",
    "the arguments of the caller": "import sys\ndef f(x):\n  l = sys._getframe(1).f_locals\n  return l.get('expected', l.get('item'))",
}

# Programs that define f, with the expected value of each.
FUNCTION: dict[str, tuple[str, object]] = {name: (code, 7) for name, code in SEVEN.items()} | {
    "equals everything, inside a list": (_ANY + "def f(x): return [A(), A()]", [1, 2]),
    "equals everything, as a key": (_ANY + "def f(x): return {A(): 1}", {"a": 1}),
    "equals everything, in a tuple": (_ANY + "def f(x): return (A(),)", [3]),
    "equals everything, in a set": (_ANY + "def f(x): return {A()}", {4}),
    "a text that lies": (
        "class S(str):\n  __eq__ = lambda s, o: True\n  __hash__ = str.__hash__\ndef f(x): return S('')",
        "abc",
    ),
    "a list that lies": (
        "class L(list):\n  __eq__ = lambda s, o: True\n  __len__ = lambda s: 3\ndef f(x): return L()",
        [1, 2, 3],
    ),
    "a dict that lies": (
        "class D(dict):\n  __eq__ = lambda s, o: True\n  def __missing__(s, k): return 1\ndef f(x): return D()",
        {"a": 1},
    ),
    "a float that lies": (
        "class F(float):\n  __eq__ = lambda s, o: True\n  __sub__ = lambda s, o: 0.0\n  __abs__ = lambda s: 0.0\ndef f(x): return F('nan')",
        0.5,
    ),
    "nan": ("def f(x): return float('nan')", 0.5),
    "nan for nan": ("def f(x): return float('nan')", float("nan")),
    "infinity": ("def f(x): return float('inf')", 1e308),
    "true for one": ("def f(x): return True", 1),
    "one for true": ("def f(x): return 1", True),
    "false for zero": ("def f(x): return False", 0),
    "bytes for text": ("def f(x): return b'abc'", "abc"),
    "none": ("def f(x): return None", 0),
    "nothing for an empty list": ("def f(x): pass", []),
    "a generator": ("def f(x):\n  yield from [1, 2]", [1, 2]),
    "close enough to an integer": ("def f(x): return 10 ** 12 + 1", 10**12),
    "not close enough to a float": ("def f(x): return 1.001", 1.0),
    "exit in the function": ("import sys\ndef f(x): sys.exit(0)", None),
    "exit hard in the function": ("import os\ndef f(x): os._exit(0)", None),
    "exit on import": ("import sys; sys.exit(0)", None),
    "an exception": ("def f(x): raise ValueError(7)", None),
    "no function": ("x = 1", None),
    "a function that is none": ("f = None", None),
    "change the arguments": ("def f(x): x.clear(); x.append(7); return x", [8]),
    "a loop": ("def f(x):\n  a = []; a.append(a); return a", []),
}
