"""Temporary folders that outlive a killed process only until the next process on the machine asks for one.

Those of one process lie in one folder, which it keeps locked as long as it uses any.
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
_HELD: dict[int, tuple[int, Path]] = {}
"""Process -> the descriptor of its locked folder, and the folder. A fork finds no entry of its own."""
_LOCK = threading.Lock()


def new_folder() -> Path:
    """Return a new empty folder. A process that has none yet first removes those that dead processes left."""
    with _LOCK:
        held = _HELD.get(os.getpid())
        if held is None:
            parent = Path(tempfile.gettempdir())
            _remove_left(parent)
            held = _HELD[os.getpid()] = _locked_folder(parent)
        return Path(tempfile.mkdtemp(dir=held[1]))


def remove_folder(folder: Path) -> None:
    """Remove a folder of this process with all that is in it."""
    shutil.rmtree(folder, ignore_errors=True)
    with _LOCK, suppress(OSError):
        held = _HELD.get(os.getpid())
        if held is not None and held[1] == folder.parent:
            os.rmdir(held[1])  # fails while another folder is in it
            os.close(_HELD.pop(os.getpid())[0])


def _remove_left(parent: Path) -> None:
    """Remove the folders in `parent` of processes that are gone. Those of other users stay."""
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
            # Another process may have taken the new folder for a dead one's, before the lock.
            if folder.is_dir():
                return descriptor, folder
            os.close(descriptor)
