"""Empty and measure a folder that an untrusted program has written to."""

from __future__ import annotations

import contextlib
import os

MAX_ENTRIES = 2048


def empty(folder: str) -> None:
    """Remove everything in `folder`, at any depth of nesting and whatever the modes."""
    number = 0
    while True:
        with os.scandir(folder) as entries:
            inside = [(e.name, e.is_dir(follow_symlinks=False)) for e in entries]
        if not inside:
            return
        for name, is_folder in inside:
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


def is_over(folder: str, most_bytes: int, most_entries: int = MAX_ENTRIES) -> bool:
    """True if the folder holds more than `most_bytes` or `most_entries` entries. It stops counting there.

    Folders nested deeper than a path can name are too many, and folders closed to us are opened.
    """
    total, count, todo = 0, 0, [folder]
    while todo:
        place = todo.pop()
        try:
            with _scan(place) as entries:
                for entry in entries:
                    count += 1
                    with contextlib.suppress(OSError):
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if total > most_bytes or count > most_entries:
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
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
