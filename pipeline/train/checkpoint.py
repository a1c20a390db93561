"""Checkpoints that are whole or not there: written aside, synced, named by one rename, and sealed by a manifest.

A checkpoint is a folder `checkpoints/00000120` whose `manifest.json` holds the size and SHA-256 of every other file in
it. One that is torn or changed is refused by name, and the one before it is used.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import CheckpointError, RunError

MANIFEST = "manifest.json"
FORMAT = 1
PARTIAL, REPLACED = ".partial-", ".replaced-"
RUST_ERRNO = re.compile(r"\(os error (\d+)\)")
"""How writers that are not Python's (safetensors) put the system's error into their message."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A checkpoint that cannot be trusted, and why."""

    path: Path
    reason: str


def save(root: Path, serial: int, write: Callable[[Path], None], keep: int, kept: Set[int] = frozenset()) -> Path:
    """Write checkpoint `serial` under `root` with `write(folder)`, atomically; then drop old ones.

    The newest `keep` stay, and beside them those of the serials in `kept`.

    Raises: RunError when the disk is full or not writable; what was there before is untouched.
    """
    final, partial = root / f"{serial:08d}", partial_path(root, serial)
    with disk_errors(f"writing checkpoint {final.name}", partial):
        root.mkdir(parents=True, exist_ok=True)
        _recover(root)
        partial.mkdir()
        write(partial)
        files = {str(p.relative_to(partial)): _seal(p) for p in sorted(partial.rglob("*")) if p.is_file()}
        manifest = partial / MANIFEST
        manifest.write_text(json.dumps({"format": FORMAT, "serial": serial, "files": files}, indent=1, sort_keys=True))
        _sync(manifest)
        for folder in sorted((p for p in partial.rglob("*") if p.is_dir()), reverse=True):
            _sync(folder)
        _sync(partial)
        _replace(partial, final)
        _sync(root)
    for old in [p for p in _numbered(root) if int(p.name) not in kept][keep:]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def partial_path(root: Path, serial: int) -> Path:
    """Where checkpoint `serial` is written before it has its name."""
    return root / f"{PARTIAL}{serial:08d}"


def newest(root: Path) -> tuple[Path | None, list[Refused]]:
    """The newest checkpoint that verifies, or None, and those newer ones that were refused."""
    refused: list[Refused] = []
    _recover(root)
    for path in _numbered(root):
        reason = fault(path)
        if reason is None:
            return path, refused
        refused.append(Refused(path, reason))
    return None, refused


def fault(path: Path) -> str | None:
    """Why the checkpoint at `path` cannot be trusted; None if it is whole."""
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
        if (path / name).stat().st_size != size:
            return f"{name} has {(path / name).stat().st_size} bytes, its manifest says {size}"
        if _digest(path / name) != digest:
            return f"{name} was changed after it was written (SHA-256 differs)"
    return None


def require(path: Path) -> None:
    """Raises: CheckpointError if the checkpoint at `path` cannot be trusted."""
    reason = fault(path)
    if reason is not None:
        raise CheckpointError(f"checkpoint {path}: {reason}; delete it, or start from another one")


@contextmanager
def disk_errors(what: str, partial: Path | None = None) -> Iterator[None]:
    """Turn a full or unwritable disk into a RunError with the remedy, and remove `partial`."""
    try:
        yield
    except Exception as exc:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)
        number = _errno(exc)
        if number in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(
                f"{what}: the disk is full; free space and start the same command again, it goes on from the last "
                "whole checkpoint"
            ) from exc
        if number in (errno.EACCES, errno.EROFS, errno.EPERM):
            where = getattr(exc, "filename", None) or partial
            raise RunError(f"{what}: {os.strerror(number)} ({where}); make the folder writable") from exc
        raise


def _errno(exc: Exception) -> int | None:
    if isinstance(exc, OSError):
        return exc.errno
    found = RUST_ERRNO.search(str(exc))
    return int(found[1]) if found else None


def _replace(partial: Path, final: Path) -> None:
    """Name the partial folder; one of that name (refused, or its run died) stands aside until that is done.

    Killed, or out of disk, in between: `_recover` brings it back.
    """
    aside = final.with_name(REPLACED + final.name)
    if final.exists():
        os.rename(final, aside)
    os.rename(partial, final)
    shutil.rmtree(aside, ignore_errors=True)


def _recover(root: Path) -> None:
    """Undo what a killed save left: partial folders go; one that stood aside comes back if it has no successor."""
    for stale in root.glob(PARTIAL + "*"):
        shutil.rmtree(stale, ignore_errors=True)
    for aside in root.glob(REPLACED + "*"):
        final = aside.with_name(aside.name.removeprefix(REPLACED))
        if final.exists():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            os.rename(aside, final)


def _numbered(root: Path) -> list[Path]:
    """Checkpoint folders under `root`, newest first."""
    if not root.is_dir():
        return []
    return sorted((p for p in root.iterdir() if p.name.isdigit() and p.is_dir()), reverse=True)


def _seal(path: Path) -> dict[str, int | str]:
    _sync(path)
    return {"bytes": path.stat().st_size, "sha256": _digest(path)}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
