"""Programs that change what a worker's runs might share, and a check that later runs notice nothing."""

from tests.sandbox.programs import tables
from verizero import sandbox

_ALL = "import fcntl, os, signal\nfor fd in range(7):\n  try: {}\n  except OSError: pass"
_TABLES = tables("leavings")
PYTHON = {name: _ALL.format(act) for name, act in _TABLES["descriptors"].items()} | _TABLES["python"]
"""Programs of Python. Whether an act succeeds is all the same."""
NATIVE = _TABLES["native"]
"""Programs of other languages, by name: the code and the language."""

ELSEWHERE = (
    "import os, signal\ndone = []\nfor p in range(max(2, os.getpid() - 9), os.getpid() + 9):\n"
    "  if p == os.getpid(): continue\n  try: ACT\n  except OSError: continue\n  done.append(p)\nprint(done)"
)
"""An act on the processes around the program's own, of which some have the same user at level 2."""

_ECHO = (
    "import os, sys\nassert os.listdir('.') == []\nopen('mine', 'w').write('x')\ntext = open('/dev/stdin').read()\n"
    "print(text[::-1])\nprint('err ' + text, file=sys.stderr)\nassert not LATE"
)


def complaints(pool):
    """Yield what is wrong with the folder, input, output, errors and values of runs of this pool."""
    for size, late in ((60, True), (5, False)):
        text = ("abcdefghij" * 6)[:size]
        echo = (_ECHO if size < 60 else _ECHO.replace("open('/dev/stdin')", "sys.stdin")).replace("LATE", str(late))
        result = sandbox.run(echo, [{"input": text, "output": text[::-1]}], pool=pool)
        if result.status != ("runtime_error" if late else "passed") or result.tests[0].stdout != text[::-1] + "\n":
            yield f"{result.status}: {result.tests[0].stdout!r} for {text!r}, {result.error[-200:]!r}"
        if late and not result.error.startswith(f"err {text}\nTraceback"):
            yield f"errors: {result.error!r}"
    call = {"fn": "f", "args": [text], "expected": [text, size]}
    called = sandbox.run("def f(x): return [x, len(x)]", [call], mode="function", pool=pool)
    if not called.passed:
        yield f"a function: {called.status}, {called.tests[0].value!r}"
