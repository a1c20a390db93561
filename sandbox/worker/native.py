"""Run a compiled program, a compiler or another interpreter behind the same walls, with exec allowed."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable

from . import streams

_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/tmp", "OPENSSL_CONF": "/dev/null"}


def run(program: bytes, items: list[bytes], scratch: str, wall: Callable[[], None]) -> None:
    """Write the program's file and its input, put up the last `wall`, and execute. Never returns.

    `program` is JSON: argv, more environment, and the file's name and mode; `items` are standard input and its bytes.
    """
    plan = json.loads(program)
    stdin, content = items
    fd = os.open(plan["file"], os.O_WRONLY | os.O_CREAT | os.O_EXCL, plan["mode"])
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
    os.close(fd)
    streams.fill_input(stdin, False)
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and the new program would too
        signal.signal(ignored, signal.SIG_DFL)
    wall()
    try:
        os.closerange(streams.IN, 64)
        os.execve(plan["argv"][0], plan["argv"], _ENVIRONMENT | {"TMPDIR": scratch} | plan["environment"])
    except OSError as exc:
        sys.stderr.write(f"sandbox: {plan['argv'][0]}: {exc}\n")
        os._exit(127)
