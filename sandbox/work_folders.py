"""Folders of workers: made, held while the judge lives, and swept up when it was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
import threading
import time

_PREFIX = "verizero-sandbox-"
_CANARY = "canary"
_YOUNG_S = 60.0
_swept = threading.Event()


def make() -> tuple[str, int]:
    """A new worker's folder and the descriptor that holds it.

    It has the file `canary`, which every user of the host may read and no program behind the walls, and `box`, where
    programs write at level 2. The first call of a process removes folders that killed ones have left.
    """
    if not _swept.is_set():
        _swept.set()
        sweep()
    home = tempfile.mkdtemp(prefix=_PREFIX)
    os.chmod(home, 0o711)
    os.mkdir(f"{home}/box", 0o700)
    held = os.open(f"{home}/{_CANARY}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    os.fchmod(held, 0o644)
    fcntl.flock(held, fcntl.LOCK_EX)  # released by the kernel with our last breath
    os.write(held, secrets.token_hex(16).encode())
    return home, held


def canary(home: str) -> str:
    """The path of the file that no program may read."""
    return f"{home}/{_CANARY}"


def remove(home: str, held: int) -> None:
    """Take the folder away."""
    shutil.rmtree(home, ignore_errors=True)
    os.close(held)


def sweep() -> int:
    """How many abandoned folders there were; they are removed."""
    count = 0
    place = tempfile.gettempdir()
    for name in os.listdir(place):
        home = f"{place}/{name}"
        if not name.startswith(_PREFIX):
            continue
        with contextlib.suppress(OSError):
            if time.time() - os.stat(home).st_mtime < _YOUNG_S or os.stat(home).st_uid != os.geteuid():
                continue
            fd = os.open(canary(home), os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(home, ignore_errors=True)
                count += 1
            finally:
                os.close(fd)
    return count
