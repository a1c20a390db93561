"""Folders of workers and agents. They are locked while the caller lives; those of killed callers are removed later."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
import threading

from verizero.sandbox.worker import disk

_PREFIX = "verizero-sandbox-"
_CANARY = "canary"
_swept = threading.Event()


def make() -> tuple[str, int]:
    """Make a worker's folder; return it and the descriptor that locks it.

    The folder has a file `canary`, which every user of the host may read, but no program behind the walls; and a folder
    `box`, where programs write at level 2. The first call of a process removes the folders of killed processes.
    """
    if not _swept.is_set():
        _swept.set()
        sweep()
    while True:
        home = tempfile.mkdtemp(prefix=_PREFIX)
        os.chmod(home, 0o711)
        lock_fd = os.open(canary(home), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(lock_fd, fcntl.LOCK_EX)  # the kernel releases it when this process ends, however it ends
        with contextlib.suppress(FileNotFoundError):  # before the lock, another process may have removed the folder
            os.mkdir(f"{home}/box", 0o700)
            os.fchmod(lock_fd, 0o644)
            os.write(lock_fd, secrets.token_hex(16).encode())
            return home, lock_fd
        os.close(lock_fd)


def canary(home: str) -> str:
    """Return the path of the file that no program behind the walls may read."""
    return f"{home}/{_CANARY}"


def remove(home: str, lock_fd: int) -> None:
    """Remove the folder and its lock."""
    with contextlib.suppress(OSError):
        disk.empty(home)  # a killed worker may have left folders nested deeper than `rmtree` can follow
    with contextlib.suppress(RecursionError):  # its worker may still be emptying it
        shutil.rmtree(home, ignore_errors=True)
    os.close(lock_fd)


def sweep() -> int:
    """Remove abandoned folders and return their number."""
    count = 0
    parent = tempfile.gettempdir()
    for name in os.listdir(parent):
        home = f"{parent}/{name}"
        if not name.startswith(_PREFIX):
            continue
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            # Empty what was opened, by its descriptor: others may replace the path by a link at any moment.
            folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            stack.callback(os.close, folder)
            if os.fstat(folder).st_uid != os.geteuid():
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
