"""Checkpoints: written under another name, synced, renamed once. So each is whole, or is not there.

A checkpoint is a folder `checkpoints/00000120` whose `manifest.json` has the size and SHA-256 of every other file in
it. If a checkpoint is damaged, the one before it is used. If one may be whole, but cannot be read now or by this
version, the run stops, and does not use an older one.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from verizero.pipeline.errors import CheckpointError
from verizero.pipeline.host.disk import disk_errors, replace_folder, sha256_of

if TYPE_CHECKING:
    from verizero.pipeline.train.ranks import Ranks

MANIFEST = "manifest.json"
FORMAT = 1
READERS = 8
"""Files that a process reads at once. SHA-256 takes a core for each, and disks are faster than one."""
Seal = dict[str, int | str]
"""Bytes and SHA-256 of a file."""
Digests = Mapping[Path, str]
"""SHA-256 by file."""
NO_DIGESTS: Digests = {}
FinishWriting = Callable[[], Mapping[str, Seal]]
"""Does the rest of writing a checkpoint while training continues; another thread may call it.

Returns the seals, by name, of the files that the ranks which wrote them have read for that.
"""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unusable:
    """A checkpoint that cannot be used, and why."""

    path: Path
    reason: str
    is_damaged: bool = True
    """False: it may be whole, but cannot be read now, or by this version."""

    def __str__(self) -> str:
        return f"{self.path.name}: {self.reason}"


def save(
    root: Path, serial: int, write: Callable[[Path], FinishWriting | None], keep: int, kept: Set[int] = frozenset()
) -> Callable[[], None] | None:
    """Write checkpoint `serial` under `root` with `write(folder)`, atomically; then delete old ones.

    The newest `keep` stay, and those whose serials are in `kept`. If `write` returns a function that finishes the
    writing, return one that calls it and then does the rest, for another thread.

    Raises: RunError when the disk is full or not writable; what was there before is untouched.
    """
    final = path_of(root, serial)
    doing = f"writing checkpoint {final.name}"
    with ExitStack() as stack:
        folder = stack.enter_context(replace_folder(final, doing))
        finish_writing = write(folder)
        rename_at_end = stack.pop_all()  # gives the folder its name at the end, or removes it after an error

    def finish() -> None:
        with rename_at_end:
            _seal_folder(folder, serial, {} if finish_writing is None else finish_writing())
        with disk_errors(doing):
            # The rename itself is on disk only once the parent folder is.
            _sync(root)
        # Newest first: what follows the first `keep` is old.
        for old in [p for p in checkpoint_folders(root) if int(p.name) not in kept][keep:]:
            shutil.rmtree(old, ignore_errors=True)

    if finish_writing is not None:
        return finish
    finish()
    return None


def path_of(root: Path, serial: int) -> Path:
    """Return the folder of checkpoint `serial` under `root`."""
    return root / f"{serial:08d}"


def shared_digests(checkpoint: Path | None, ranks: Ranks) -> Digests:
    """Return the digests of the checkpoint's files, each read by one rank. All ranks must call it.

    Those that cannot be read are left out. With one rank there are none: `damage_of` reads what it is not given.
    """
    if ranks.size == 1 or checkpoint is None:
        return {}

    def largest_first() -> list[Path]:
        try:
            return sorted((checkpoint / name for name in _files(checkpoint)), key=lambda p: (-p.stat().st_size, p))
        except OSError:
            return []

    def digest(path: Path) -> str | None:
        try:
            return sha256_of(path)
        except OSError:
            return None

    mine = ranks.decide_on_first(largest_first)[ranks.rank :: ranks.size]
    read = ranks.gather(_at_once(digest, mine))
    return {path: digested for part in read for path, digested in part.items() if digested is not None}


def damage_of(path: Path, digests: Digests = NO_DIGESTS) -> Unusable | None:
    """Return why the checkpoint at `path` cannot be used; None if it is whole. digests: those that are known."""
    try:
        return _damage_of_readable(path, digests)
    except OSError as exc:
        # No damage: a disk that is not mounted, a permission, a network that is down.
        unread = exc.filename or path
        return Unusable(path, f"{unread} cannot be read ({exc.strerror or exc})", is_damaged=False)


def _damage_of_readable(path: Path, digests: Digests) -> Unusable | None:
    if not stat.S_ISDIR(path.stat().st_mode):
        return Unusable(path, "it is a file, not a folder")
    present = set(_files(path))
    if MANIFEST not in present:
        return Unusable(path, f"{MANIFEST} is missing" if present else "its folder is empty")
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        if manifest["format"] != FORMAT:
            return Unusable(
                path, f"its format is {manifest['format']!r}, this version reads {FORMAT}", is_damaged=False
            )
        serial = int(manifest["serial"])
        files = {str(name): (int(seal["bytes"]), str(seal["sha256"])) for name, seal in manifest["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        return Unusable(path, f"its manifest cannot be read ({type(exc).__name__}: {exc})")
    if path.name != f"{serial:08d}":
        return Unusable(path, f"it is checkpoint {serial:08d} under another name")
    if missing := sorted(set(files) - present):
        return Unusable(path, f"{missing[0]} is missing")
    if extra := sorted(present - set(files) - {MANIFEST}):
        return Unusable(path, f"{extra[0]} is not in its manifest")
    # Sizes before digests: a torn file is refused without reading any.
    for name, (size, _) in files.items():
        if (size_now := (path / name).stat().st_size) != size:
            return Unusable(path, f"{name} has {size_now} bytes, its manifest says {size}")
    digested = {**digests, **_at_once(sha256_of, {path / name for name in files} - digests.keys())}
    for name, (_, digest) in files.items():
        if digested[path / name] != digest:
            return Unusable(path, f"{name} was changed after it was written (SHA-256 differs)")
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


def require(path: Path, ranks: Ranks) -> None:
    """Raise CheckpointError if the checkpoint at `path` cannot be used. All ranks must call it."""
    digests = shared_digests(path, ranks)
    damage = ranks.decide_on_first(lambda: damage_of(path, digests))
    if damage is not None:
        remedy = "delete it, or start from another one" if damage.is_damaged else "make it readable"
        raise CheckpointError(f"checkpoint {path}: {damage.reason}; {remedy}")


def checkpoint_folders(root: Path) -> list[Path]:
    """Return the folders under `root` that have the name of a checkpoint, newest first; none if there is no `root`.

    Raise CheckpointError if `root` is a link to nowhere, or cannot be read.
    """
    try:
        names = os.listdir(root) if os.path.lexists(root) else []
    except OSError as exc:
        raise CheckpointError(
            f"{root} cannot be read ({exc.strerror}), so it is unknown which checkpoints there are; mount its disk, or "
            "give back the permission"
        ) from exc
    return sorted((root / n for n in names if n.isascii() and n.isdecimal()), key=lambda p: int(p.name), reverse=True)


def seals(folder: Path, paths: Iterable[Path]) -> dict[str, Seal]:
    """Sync files of a checkpoint's folder to disk, and return their seals by name."""
    return {str(path.relative_to(folder)): seal for path, seal in _at_once(_seal, paths).items()}


def _at_once(act: Callable[[Path], T], paths: Iterable[Path]) -> dict[Path, T]:
    """Return what `act` returns for each path, READERS of them at a time. Raises its first error."""
    listed = list(paths)
    with ThreadPoolExecutor(READERS) as pool:
        return dict(zip(listed, pool.map(act, listed), strict=True))


def _seal_folder(folder: Path, serial: int, known: Mapping[str, Seal]) -> None:
    """Write the manifest of a checkpoint, and sync all files and folders in it to disk. known: seals of some files."""
    rest = [p for p in sorted(folder.rglob("*")) if p.is_file() and str(p.relative_to(folder)) not in known]
    files = {**known, **seals(folder, rest)}
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"format": FORMAT, "serial": serial, "files": files}, indent=1, sort_keys=True))
    _sync(manifest)
    # Folders last and the deepest first: a name is on disk only once its folder is.
    for inner in sorted((p for p in folder.rglob("*") if p.is_dir()), reverse=True):
        _sync(inner)
    _sync(folder)


def _seal(path: Path) -> Seal:
    _sync(path)
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)  # folders open in no other mode
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
