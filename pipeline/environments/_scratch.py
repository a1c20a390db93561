"""Temporary folders. Those of a killed process are removed when the next process on this machine makes one.

All folders of a process are in one parent folder, which it keeps locked while it uses any.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

PREFIX = "verizero-agents-"
_LOCKED: dict[int, tuple[int, Path]] = {}
"""Process id -> (descriptor of the locked parent folder, the folder). A forked process has another id, so no entry."""
_LOCK = threading.Lock()


def new_folder() -> Path:
    """Return a new empty folder. The first call of a process removes the folders of dead processes."""
    with _LOCK:
        locked = _LOCKED.get(os.getpid())
        if locked is None:
            temporary = Path(tempfile.gettempdir())
            _remove_left(temporary)
            locked = _LOCKED[os.getpid()] = _locked_folder(temporary)
        return Path(tempfile.mkdtemp(dir=locked[1]))


def remove_folder(folder: Path) -> None:
    """Remove a folder of this process with all its files."""
    shutil.rmtree(folder, ignore_errors=True)
    with _LOCK, suppress(OSError):
        locked = _LOCKED.get(os.getpid())
        if locked is not None and locked[1] == folder.parent:
            os.rmdir(locked[1])  # fails while another folder is in it
            os.close(_LOCKED.pop(os.getpid())[0])


def _remove_left(parent: Path) -> None:
    """Remove the folders in `parent` of processes that have ended. Those of other users stay."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its process lives
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def _locked_folder(parent: Path) -> tuple[int, Path]:
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=PREFIX))
        with suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Before the lock, another process may have removed the new folder as that of a dead process.
            if folder.is_dir():
                return descriptor, folder
            os.close(descriptor)
