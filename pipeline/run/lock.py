"""The lock of a run's folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pipeline.errors import InUse
from pipeline.train.checkpoint import disk_errors


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the run's folder, so that no second process trains in it. The lock ends with its process.

    Raise InUse, naming the process that holds the folder.
    """
    with disk_errors(f"creating {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    handle: IO[str] = (folder / ".lock").open("a+")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        handle.seek(0)
        holder = handle.read().strip() or "another process"
        handle.close()
        raise InUse(f"{folder} is in use by {holder}; wait for it, or give this run another name") from exc
    try:
        handle.truncate(0)
        handle.write(f"process {os.getpid()}")
        handle.flush()
        yield
    finally:
        handle.close()
