"""Control groups of workers, which bound all processes of a run together, where this process may make them."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path

_PREFIX = "verizero-sandbox-"
_NEEDED = ("memory", "pids")


def parents(proc: Path = Path("/proc/self")) -> dict[str, Path]:
    """Return, for memory and for pids, the folder below which a group with that limit may be made.

    Version 2 is preferred to version 1. Raises: OSError with the reason.
    """
    mounts = [line.split() for line in (proc / "mounts").read_text().splitlines()]
    own: dict[str, str] = {}
    for line in (proc / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own |= dict.fromkeys(controllers.split(","), path)
    if "" in own:
        for where in (Path(m[1]) for m in mounts if m[2] == "cgroup2"):
            here = where / own[""].lstrip("/")
            # A group with processes hands no limit down, so the parent may be the place for new groups.
            for folder in dict.fromkeys((here, here.parent if here != where else here)):
                if _offers(folder):
                    return dict.fromkeys(_NEEDED, folder)
    folders = {}
    for name in _NEEDED:
        for mount in (m for m in mounts if m[2] == "cgroup" and name in m[3].split(",")):
            folder = Path(mount[1]) / own.get(name, "/").lstrip("/")
            folders[name] = folder if folder.is_dir() else Path(mount[1])  # a container may not see its own path
    missing = [name for name in _NEEDED if name not in folders]
    if missing:
        raise OSError(2, f"no control group offers {' and '.join(missing)} to this process")
    for folder in folders.values():
        if not os.access(folder, os.W_OK):
            raise OSError(13, f"{folder} is not writable")
    return folders


def _offers(folder: Path) -> bool:
    """True if groups may be made in this folder of version 2 and have both limits there."""
    try:
        handed_down = (folder / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False
    return set(_NEEDED) <= set(handed_down) and os.access(folder, os.W_OK)


def make(number: int) -> dict[str, str]:
    """Make a group for memory and one for pids, the same in version 2; return their folders. Raises: OSError."""
    places = parents()
    name = f"{_PREFIX}{os.getpid()}-{number}-{secrets.token_hex(3)}"
    made = {}
    try:
        for kind, place in places.items():
            folder = place / name
            folder.mkdir(exist_ok=True)
            made[kind] = str(folder)
    except OSError:
        remove(made)
        raise
    sweep(places)
    return made


def remove(folders: dict[str, str]) -> None:
    """Remove groups whose processes are ending. One that is not empty after a second is left to a later sweep."""
    end = time.monotonic() + 1
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


def sweep(places: dict[str, Path]) -> None:
    """Remove the empty groups of callers that are gone."""
    for place in set(places.values()):
        for folder in place.glob(f"{_PREFIX}*"):
            if not Path(f"/proc/{folder.name.removeprefix(_PREFIX).split('-')[0]}").exists():
                with contextlib.suppress(OSError):
                    folder.rmdir()
