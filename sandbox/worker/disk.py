"""Files in memory, and folders that an untrusted program has written to: empty and measure them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence

MAX_ENTRIES = 2048
MAX_EMPTY_S = 60.0


def write(fd: int, data: bytes) -> None:
    """Write all of `data` to the beginning of an open file."""
    view, num_written = memoryview(data), 0
    while num_written < len(view):
        num_written += os.pwrite(fd, view[num_written:], num_written)


def link(paths: Sequence[str], folder: str) -> None:
    """Make a folder with a link to each path, named as the path's last part."""
    os.mkdir(folder)
    for path in paths:
        os.symlink(path, f"{folder}/{os.path.basename(path)}")


def empty(folder: str) -> None:
    """Remove everything in `folder`, at any depth and with any modes. Raises: OSError, after `MAX_EMPTY_S` too."""
    number, deadline = 0, time.monotonic() + MAX_EMPTY_S
    while True:
        with os.scandir(folder) as entries:
            children = [(e.name, e.is_dir(follow_symlinks=False)) for e in entries]
        if not children:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{folder} is not empty after {MAX_EMPTY_S:g} s: a process still writes to it")
        for name, is_folder in children:
            path = f"{folder}/{name}"
            if not is_folder:
                os.unlink(path)
                continue
            with contextlib.suppress(OSError):
                os.chmod(path, 0o700)
            # Folders inside are moved to the top, since a path to them might be longer than the kernel allows.
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        number += 1
                        with contextlib.suppress(OSError):
                            os.chmod(entry.path, 0o700)
                        os.rename(entry.path, f"{folder}/.swept-{number}-{os.getpid()}")
                    else:
                        os.unlink(entry.path)
            os.rmdir(path)


def is_over(folder: str, max_bytes: int) -> bool:
    """True if the folder holds more than `max_bytes` or `MAX_ENTRIES` entries. It stops counting there.

    True also if folders are nested too deep for a path. Folders without a right for us get one.
    """
    total, count, unread = 0, 0, [folder]
    while unread:
        subfolder = unread.pop()
        try:
            with _scan(subfolder) as entries:
                for entry in entries:
                    count += 1
                    with contextlib.suppress(OSError):
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if total > max_bytes or count > MAX_ENTRIES:
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        unread.append(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            continue  # moved or removed meanwhile
        except OSError:
            return True
    return False


def _scan(folder: str) -> os._ScandirIterator[str]:
    try:
        return os.scandir(folder)
    except PermissionError:
        os.chmod(folder, 0o700)
        return os.scandir(folder)
