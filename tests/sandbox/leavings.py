"""Programs that change what a worker's runs might share, and a check that later runs notice nothing."""

from __future__ import annotations

from collections.abc import Iterator

from verizero import sandbox

_ALL = "import fcntl, os, signal\nfor fd in range(7):\n  try: {}\n  except OSError: pass"

PYTHON = {
    "appends": _ALL.format("fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)"),
    "appends, and does not wait": _ALL.format("fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND | os.O_NONBLOCK)"),
    "signals": _ALL.format("fcntl.fcntl(fd, fcntl.F_SETFL, os.O_ASYNC)"),
    "bypasses caches": _ALL.format("fcntl.fcntl(fd, fcntl.F_SETFL, os.O_DIRECT)"),
    "leaves no times": _ALL.format("fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NOATIME)"),
    "does not wait": _ALL.format("fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK)"),
    "does not wait, by ioctl": _ALL.format("fcntl.ioctl(fd, 0x5421, b'\\x01\\0\\0\\0')"),
    "has an owner": _ALL.format("fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())"),
    "has a signal": _ALL.format("fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)"),
    "is locked": _ALL.format("fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)"),
    "is locked in a range": _ALL.format("fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)"),
    "is locked as it was opened": _ALL.format("fcntl.fcntl(fd, 37, b'\\x01\\0' + bytes(30))"),
    "is leased": _ALL.format("fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)"),
    "is sealed": _ALL.format("fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 0x1F)"),
    "is read elsewhere": _ALL.format("os.lseek(fd, 1 << 40, 0)"),
    "is long": _ALL.format("os.ftruncate(fd, 900_000)"),
    "is long, with bytes": _ALL.format("os.pwrite(fd, b'left' * 1000, 500_000)"),
    "is closed": _ALL.format("os.close(fd)"),
    "is another": _ALL.format("os.dup2(2, fd)"),
    "has no rights": _ALL.format("os.fchmod(fd, 0)"),
    "has an attribute": _ALL.format("os.setxattr(fd, 'user.left', b'1')"),
    "has room": _ALL.format("os.posix_fallocate(fd, 0, 1 << 20)"),
    "is read at random": _ALL.format("os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)"),
    "is mapped as it ends": "import mmap, os\nos.ftruncate(1, 4096)\n"
    "m = mmap.mmap(1, 4096); m[:] = b'l' * 4096; os.abort()",
    "is written as it ends": "import os, threading\nf = lambda: [os.pwrite(fd, b'left', 0) for _ in iter(int, 1)"
    " for fd in (0, 1, 2, 3, 4, 5, 6)]\nfor _ in range(4): threading.Thread(target=f, daemon=True).start()\n"
    "import time; time.sleep(0.02); os._exit(0)",
    "its path is opened": "import fcntl, os\nfd = os.open('/dev/stdin', os.O_RDWR | os.O_APPEND)\n"
    "fcntl.flock(fd, fcntl.LOCK_EX); os.write(fd, b'left'); os.ftruncate(fd, 9)",
    "its path is moved": "import os\nos.rename('/in/stdin', '/in/moved')",
    "its path is removed": "import os\nos.unlink('/in/stdin')",
    "another lies beside it": "open('/in/left', 'w').write('left')",
    "its folder is closed": "import os\nos.chmod('/in', 0)",
    "the scratch folder is closed": "import os\nos.chmod('.', 0)",
    "a timer runs": "import signal, os\nsignal.setitimer(signal.ITIMER_REAL, 0.05)\nos._exit(0)",
    "a limit": "import os, resource\nfor p in (0, os.getppid()): resource.prlimit(p, resource.RLIMIT_FSIZE, (9, 9))",
    "a priority": "import os\nfor p in range(max(1, os.getpid() - 9), os.getpid() + 9):\n"
    "  os.setpriority(os.PRIO_PROCESS, p, 19)",
}
"""Programs of Python. Whether an act succeeds is all the same."""

ELSEWHERE = (
    "import os, signal\ndone = []\nfor p in range(max(2, os.getpid() - 9), os.getpid() + 9):\n"
    "  if p == os.getpid(): continue\n  try: ACT\n  except OSError: continue\n  done.append(p)\nprint(done)"
)
"""An act on the processes around the program's own, of which some have the same user at level 2."""

NATIVE = {
    "appends": (
        "c",
        "#include <fcntl.h>\n#include <unistd.h>\n#include <sys/file.h>\n"
        "int main() { for (int fd = 0; fd < 3; fd++) { fcntl(fd, F_SETFL, O_APPEND); flock(fd, LOCK_EX);\n"
        "lseek(fd, 1 << 20, SEEK_SET); ftruncate(fd, 1 << 18); } }",
    ),
    "halts what it can": (
        "bash",
        "for p in $(seq $((PPID - 9)) $((PPID + 9))); do [ $p != $$ ] && [ $p -gt 1 ] && kill -STOP $p; done; true",
    ),
    "closes and moves": ("bash", "chmod 0 /dev/stdin .; mv /in/stdin /in/x; : > /in/y; umask 777; ulimit -f 1; true"),
    "truncates": (
        "javascript",
        "const fs = require('fs');\nfor (const fd of [0, 1, 2]) for (const act of ['fchmodSync', 'ftruncateSync'])\n"
        "  try { fs[act](fd, 0o100) } catch {}",
    ),
}
"""Programs of other languages, by name: the language and the code."""

_ECHO = "import sys\ntext = sys.stdin.read()\nprint(text[::-1])\nprint('err ' + text, file=sys.stderr)\nassert not LATE"


def complaints(pool: sandbox.Pool) -> Iterator[str]:
    """Yield what is wrong with the input, output, errors and values of runs of this pool."""
    for size in (60, 5, 30):
        text = "abcdefghij" * 6
        text = text[:size]
        for late in (False, True):
            result = sandbox.run(_ECHO.replace("LATE", str(late)), [{"input": text, "output": text[::-1]}], pool=pool)
            if result.status != ("runtime_error" if late else "passed") or result.tests[0].stdout != text[::-1] + "\n":
                yield f"{result.status}: {result.tests[0].stdout!r} for {text!r}, {result.error[-200:]!r}"
            if late and not result.error.startswith(f"err {text}\nTraceback"):
                yield f"errors: {result.error!r}"
        call = {"fn": "f", "args": [text], "expected": [text, size]}
        called = sandbox.run("def f(x): return [x, len(x)]", [call], mode="function", pool=pool)
        if not called.passed:
            yield f"a function: {called.status}, {called.tests[0].value!r}"
    own = "import os\nassert os.listdir('.') == []\nopen('mine', 'w').write('x')\nprint(open('/dev/stdin').read())"
    result = sandbox.run(own, [{"input": "path", "output": "path"}], pool=pool)
    if not result.passed:
        yield f"its folder: {result.status}, {result.error[-200:]!r}"
