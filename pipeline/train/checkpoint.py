"""Checkpoints that are whole or not there: written under another name, synced, renamed once, sealed by a manifest.

A checkpoint is a folder `checkpoints/00000120` whose `manifest.json` holds the size and SHA-256 of every other file in
it. A torn or changed checkpoint is refused by name, and the one before it is used. One that may be whole, but cannot be
read now or by this version, is no damage: the run then stops, and an older one is not used in its place.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from verizero.pipeline.errors import CheckpointError
from verizero.pipeline.files import disk_errors, replace_folder

MANIFEST = "manifest.json"
FORMAT = 1
Rest = Callable[[], None]
"""The rest of writing a checkpoint, done while training continues; another thread may call it."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A checkpoint that cannot be trusted, with the reason."""

    path: Path
    reason: str
    is_damaged: bool = True
    """False: it may be whole, but cannot be read now, or by this version."""

    def __str__(self) -> str:
        return f"{self.path.name}: {self.reason}"


def save(
    root: Path, serial: int, write: Callable[[Path], Rest | None], keep: int, kept: Set[int] = frozenset()
) -> Rest | None:
    """Write checkpoint `serial` under `root` with `write(folder)`, atomically; then drop old ones.

    The newest `keep` stay, and those whose serials are in `kept`. If `write` returns what is still to be done, return
    that and the rest of this, for another thread.

    Raises: RunError when the disk is full or not writable; what was there before is untouched.
    """
    final = path_of(root, serial)
    doing = f"writing checkpoint {final.name}"
    with ExitStack() as stack:
        folder = stack.enter_context(replace_folder(final, doing))
        rest = write(folder)
        naming = stack.pop_all()  # gives the folder its name when it ends, or removes it after an error

    def end() -> None:
        with naming:
            if rest is not None:
                rest()
            _seal_folder(folder, serial)
        with disk_errors(doing):
            # The rename itself is on disk only once the parent folder is.
            _sync(root)
        # Newest first: what follows the first `keep` is old.
        for old in [p for p in numbered(root) if int(p.name) not in kept][keep:]:
            shutil.rmtree(old, ignore_errors=True)

    if rest is not None:
        return end
    end()
    return None


def path_of(root: Path, serial: int) -> Path:
    """Return the folder of checkpoint `serial` under `root`."""
    return root / f"{serial:08d}"


def fault(path: Path) -> Refused | None:
    """Return the reason why the checkpoint at `path` cannot be trusted; None if it is whole."""
    try:
        return _fault(path)
    except OSError as exc:
        # It says nothing of the files: a disk that is not mounted, a permission, a network that is down.
        where = exc.filename or path
        return Refused(path, f"{where} cannot be read ({exc.strerror or exc})", is_damaged=False)


def _fault(path: Path) -> Refused | None:
    if not stat.S_ISDIR(path.stat().st_mode):
        return Refused(path, "it is a file, not a folder")
    present = set(_files(path))
    if MANIFEST not in present:
        return Refused(path, f"{MANIFEST} is missing" if present else "its folder is empty")
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        if manifest["format"] != FORMAT:
            return Refused(path, f"its format is {manifest['format']!r}, this version reads {FORMAT}", is_damaged=False)
        serial = int(manifest["serial"])
        files = {str(name): (int(seal["bytes"]), str(seal["sha256"])) for name, seal in manifest["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        return Refused(path, f"its manifest cannot be read ({type(exc).__name__}: {exc})")
    if path.name != f"{serial:08d}":
        return Refused(path, f"it is checkpoint {serial:08d} under another name")
    if missing := sorted(set(files) - present):
        return Refused(path, f"{missing[0]} is missing")
    if extra := sorted(present - set(files) - {MANIFEST}):
        return Refused(path, f"{extra[0]} is not in its manifest")
    for name, (size, digest) in files.items():
        # Size before digest: a torn file is refused without reading it.
        if (size_now := (path / name).stat().st_size) != size:
            return Refused(path, f"{name} has {size_now} bytes, its manifest says {size}")
        if _digest(path / name) != digest:
            return Refused(path, f"{name} was changed after it was written (SHA-256 differs)")
    return None


def _files(folder: Path) -> Iterator[str]:
    """Yield the names of all files in the folder, also behind links. Raise OSError for what cannot be listed."""

    def fail(exc: OSError) -> None:
        raise exc

    for inner, _, names in os.walk(folder, onerror=fail, followlinks=True):
        for name in names:
            path = Path(inner, name)
            path.stat()  # a link to a disk that is not mounted is no missing file
            yield str(path.relative_to(folder))


def require(path: Path) -> None:
    """Raise CheckpointError if the checkpoint at `path` cannot be trusted."""
    bad = fault(path)
    if bad is not None:
        remedy = "delete it, or start from another one" if bad.is_damaged else "make it readable"
        raise CheckpointError(f"checkpoint {path}: {bad.reason}; {remedy}")


def numbered(root: Path) -> list[Path]:
    """Return what has the name of a checkpoint under `root`, newest first. Raise CheckpointError if none can be seen.

    `root` may be missing, but not a link to nowhere, nor a folder that cannot be read.
    """
    try:
        names = os.listdir(root) if os.path.lexists(root) else []
    except OSError as exc:
        raise CheckpointError(
            f"{root} cannot be read ({exc.strerror}), so it is unknown which checkpoints there are; mount its disk, or "
            "give back the permission"
        ) from exc
    return sorted((root / n for n in names if n.isascii() and n.isdecimal()), key=lambda p: int(p.name), reverse=True)


def _seal_folder(folder: Path, serial: int) -> None:
    """Write the manifest of a checkpoint's files, and sync all that is in the folder."""
    files = {str(p.relative_to(folder)): _seal(p) for p in sorted(folder.rglob("*")) if p.is_file()}
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"format": FORMAT, "serial": serial, "files": files}, indent=1, sort_keys=True))
    _sync(manifest)
    # Folders last and the deepest first: a name is on disk only once its folder is.
    for inner in sorted((p for p in folder.rglob("*") if p.is_dir()), reverse=True):
        _sync(inner)
    _sync(folder)


def _seal(path: Path) -> dict[str, int | str]:
    _sync(path)
    return {"bytes": path.stat().st_size, "sha256": _digest(path)}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)  # folders open in no other mode
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
