"""Checkpoints that are whole or not there: written under another name, synced, renamed once, sealed by a manifest.

A checkpoint is a folder `checkpoints/00000120` whose `manifest.json` holds the size and SHA-256 of every other file in
it. A torn or changed checkpoint is refused by name, and the one before it is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Set
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import CheckpointError
from pipeline.files import disk_errors, replace_folder, restore_folders

MANIFEST = "manifest.json"
FORMAT = 1
Rest = Callable[[], None]
"""The rest of writing a checkpoint, done while training continues; another thread may call it."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A checkpoint that cannot be trusted, with the reason."""

    path: Path
    reason: str


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
        for old in [p for p in _numbered(root) if int(p.name) not in kept][keep:]:
            shutil.rmtree(old, ignore_errors=True)

    if rest is not None:
        return end
    end()
    return None


def path_of(root: Path, serial: int) -> Path:
    """Return the folder of checkpoint `serial` under `root`."""
    return root / f"{serial:08d}"


def newest(root: Path) -> tuple[Path | None, list[Refused]]:
    """Return the newest checkpoint that verifies, or None, and the newer ones that were refused."""
    refused: list[Refused] = []
    restore_folders(root)
    for path in _numbered(root):
        reason = fault(path)
        if reason is None:
            return path, refused
        refused.append(Refused(path, reason))
    return None, refused


def fault(path: Path) -> str | None:
    """Return the reason why the checkpoint at `path` cannot be trusted; None if it is whole."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        if manifest["format"] != FORMAT:
            return f"its format is {manifest['format']}, this version reads {FORMAT}"
        serial = int(manifest["serial"])
        files = {str(name): (int(seal["bytes"]), str(seal["sha256"])) for name, seal in manifest["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        return f"its manifest cannot be read ({type(exc).__name__}: {exc})"
    if path.name != f"{serial:08d}":
        return f"it is checkpoint {serial:08d} under another name"
    present = {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()} - {MANIFEST}
    if missing := sorted(set(files) - present):
        return f"{missing[0]} is missing"
    if extra := sorted(present - set(files)):
        return f"{extra[0]} is not in its manifest"
    for name, (size, digest) in files.items():
        # Size before digest: a torn file is refused without reading it.
        if (path / name).stat().st_size != size:
            return f"{name} has {(path / name).stat().st_size} bytes, its manifest says {size}"
        if _digest(path / name) != digest:
            return f"{name} was changed after it was written (SHA-256 differs)"
    return None


def require(path: Path) -> None:
    """Raise CheckpointError if the checkpoint at `path` cannot be trusted."""
    reason = fault(path)
    if reason is not None:
        raise CheckpointError(f"checkpoint {path}: {reason}; delete it, or start from another one")


def _numbered(root: Path) -> list[Path]:
    """Return the checkpoint folders under `root`, newest first."""
    if not root.is_dir():
        return []
    return sorted((p for p in root.iterdir() if p.name.isdigit() and p.is_dir()), reverse=True)


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
