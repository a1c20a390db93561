"""Folders of workers: made, locked while the caller lives, and removed later if it was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
import threading
import time

from verizero.sandbox.worker import disk

_PREFIX = "verizero-sandbox-"
_CANARY = "canary"
_YOUNG_S = 60.0
_swept = threading.Event()


def make() -> tuple[str, int]:
    """Make a worker's folder; return it and the descriptor that locks it.

    The folder has the file `canary`, which every user of the host may read but no program behind the walls, and `box`,
    where programs write at level 2. The first call of a process removes folders that killed processes have left.
    """
    if not _swept.is_set():
        _swept.set()
        sweep()
    home = tempfile.mkdtemp(prefix=_PREFIX)
    os.chmod(home, 0o711)
    os.mkdir(f"{home}/box", 0o700)
    held = os.open(f"{home}/{_CANARY}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    os.fchmod(held, 0o644)
    fcntl.flock(held, fcntl.LOCK_EX)  # the kernel releases it when this process ends, however it ends
    os.write(held, secrets.token_hex(16).encode())
    return home, held


def canary(home: str) -> str:
    """Return the path of the file that no program may read."""
    return f"{home}/{_CANARY}"


def remove(home: str, held: int) -> None:
    """Remove the folder and its lock."""
    _clear(home)
    os.close(held)


def _clear(home: str) -> None:
    """Remove the folder, in which a killed worker may have left folders nested deeper than `rmtree` can follow."""
    with contextlib.suppress(OSError):
        disk.empty(home)
    with contextlib.suppress(RecursionError):  # its worker may be emptying it at the same time
        shutil.rmtree(home, ignore_errors=True)


def sweep() -> int:
    """Remove abandoned folders and return their number."""
    count = 0
    place = tempfile.gettempdir()
    for name in os.listdir(place):
        home = f"{place}/{name}"
        if not name.startswith(_PREFIX):
            continue
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            # What is opened here is what is emptied: others may put a link in its place at any moment.
            folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            stack.callback(os.close, folder)
            status = os.fstat(folder)
            if time.time() - status.st_mtime < _YOUNG_S or status.st_uid != os.geteuid():
                continue
            lock = os.open(_CANARY, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            stack.callback(os.close, lock)
            if os.fstat(lock).st_uid != os.geteuid():
                continue
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            disk.empty(f"/proc/self/fd/{folder}")
            os.rmdir(home)
            count += 1
    return count
