"""Control groups of workers, which limit all processes of a run together, if this process may make them."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path

_PREFIX = "verizero-sandbox-"
_NEEDED = ("memory", "pids")
EMPTY_S = 10.0
"""The kernel ends processes of a group later where other programs take the cores."""


def parents(proc: Path = Path("/proc/self")) -> dict[str, Path]:
    """Return for "memory" and "pids" the folder in which a group with that limit may be made.

    Version 2 is preferred to version 1. Raises: OSError with the reason.
    """
    mounts = [line.split() for line in (proc / "mounts").read_text().splitlines()]
    own_paths: dict[str, str] = {}
    for line in (proc / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own_paths |= dict.fromkeys(controllers.split(","), path)
    if "" in own_paths:
        for mount_point in (Path(m[1]) for m in mounts if m[2] == "cgroup2"):
            own_group = mount_point / own_paths[""].lstrip("/")
            # A group with processes cannot have subgroups with limits: new groups may have to go into its parent.
            for folder in dict.fromkeys((own_group, own_group.parent if own_group != mount_point else own_group)):
                with contextlib.suppress(OSError):
                    offered = (folder / "cgroup.subtree_control").read_text().split()
                    if set(_NEEDED) <= set(offered) and os.access(folder, os.W_OK):
                        return dict.fromkeys(_NEEDED, folder)
    folders = {}
    for name in _NEEDED:
        for mount in (m for m in mounts if m[2] == "cgroup" and name in m[3].split(",")):
            folder = Path(mount[1]) / own_paths.get(name, "/").lstrip("/")
            folders[name] = folder if folder.is_dir() else Path(mount[1])  # a container may not see its own path
    missing = [name for name in _NEEDED if name not in folders]
    if missing:
        raise OSError(2, f"no control group offers {' and '.join(missing)} to this process")
    for folder in folders.values():
        if not os.access(folder, os.W_OK):
            raise OSError(13, f"{folder} is not writable")
    return folders


def make(number: int) -> dict[str, str]:
    """Make a group for memory and one for pids, the same in version 2; return their folders. Raises: OSError."""
    parent_folders = parents()
    name = f"{_PREFIX}{os.getpid()}-{number}-{secrets.token_hex(3)}"
    new_folders = {}
    try:
        for kind, parent in parent_folders.items():
            folder = parent / name
            folder.mkdir(exist_ok=True)
            new_folders[kind] = str(folder)
    except OSError:
        remove(new_folders)
        raise
    sweep(parent_folders)
    return new_folders


def remove(folders: dict[str, str]) -> None:
    """Remove groups whose processes are ending. One that is not empty after `EMPTY_S` is left to a later sweep."""
    end = time.monotonic() + EMPTY_S
    for folder in set(folders.values()):
        while True:
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                pass
            except OSError:
                if time.monotonic() < end:
                    time.sleep(0.005)
                    continue
            break


def sweep(parent_folders: dict[str, Path]) -> None:
    """Remove the empty groups of callers that are gone."""
    for parent in set(parent_folders.values()):
        for folder in parent.glob(f"{_PREFIX}*"):
            if not Path(f"/proc/{folder.name.removeprefix(_PREFIX).split('-')[0]}").exists():
                with contextlib.suppress(OSError):
                    folder.rmdir()
