"""The files of sessions: a file system each, or a folder each where there are no namespaces.

The keeper looks at a session's files only while nothing of the session runs.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import stat
from collections.abc import Iterator
from typing import Any

from . import disk, jail, kernel

PLACE = "/in"
"""A folder in which the keeper mounts what no child's namespace shows."""
_MOST_DEPTH = 48
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
Entry = tuple[bytes, bool, int, int, list[tuple[int, bytes]]]
"""Path, True for a folder, mode, size, and the stretches of a file that hold data."""


class Refused(Exception):
    """The files cannot be used so, by the program's or the caller's fault."""


class Room:
    """The files of one session."""

    def __init__(self, cell: jail.Jail, number: int, disk_mib: int, files: int) -> None:
        self.cell, self.disk_mib, self.files = cell, disk_mib, files
        self.path = f"{PLACE if cell.has_namespaces else cell.scratch}/{number}"
        os.mkdir(self.path, 0o700)
        if cell.has_namespaces:
            flags = kernel.MS_NOSUID | kernel.MS_NODEV | (0 if cell.tools else kernel.MS_NOEXEC)
            kernel.mount("tmpfs", self.path, "tmpfs", flags, f"size={disk_mib}m,nr_inodes={files},mode=700")

    @property
    def scratch(self) -> str:
        """The folder as the session's programs name it."""
        return self.cell.scratch if self.cell.has_namespaces else self.path

    def attach(self, pid: int, home: int) -> None:
        """Show the files to a child that waits in a mount namespace of its own. `home` is ours. Raises: OSError."""
        if not self.cell.has_namespaces:
            return
        copy = kernel.copy_of_mount(self.path)
        theirs = os.open(f"{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.cell.proc)
        try:
            kernel.enter_mounts(theirs)
            try:
                kernel.attach_mount(copy, self.cell.scratch)
            finally:
                kernel.enter_mounts(home)
        finally:
            os.close(theirs)
            os.close(copy)

    def remove(self) -> None:
        """Remove the files."""
        if self.cell.has_namespaces:
            kernel.unmount(self.path)
        else:
            disk.empty(self.path)
        os.rmdir(self.path)

    def is_over(self) -> bool:
        """True if there are more files than the session may have; the kernel sees to that where it has namespaces."""
        return not self.cell.has_namespaces and disk.is_over(self.path, self.disk_mib << 20, self.files)

    def write(self, path: str, data: bytes) -> None:
        """Write a file; folders on its way are made. Raises: Refused."""
        folder, name = self._folder_of(path, True)
        try:
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | _FILE, 0o600, dir_fd=folder)
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise Refused(f"{path} is no plain file")
                os.ftruncate(fd, 0)
                _write(fd, data, 0)
            finally:
                os.close(fd)
        except OSError as exc:
            raise Refused(f"{path}: {exc.strerror}") from exc
        finally:
            os.close(folder)
        if self.is_over():
            os.unlink(f"{self.path}/{path}")
            raise Refused(f"{path}: no room for {len(data)} bytes in {self.disk_mib} MiB")

    def read(self, path: str) -> bytes:
        """Return a file's bytes. Raises: Refused."""
        folder, name = self._folder_of(path, False)
        try:
            fd = os.open(name, os.O_RDONLY | _FILE, dir_fd=folder)
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise Refused(f"{path} is no plain file")
                if os.fstat(fd).st_size > self.disk_mib << 20:
                    raise Refused(f"{path} is larger than {self.disk_mib} MiB")
                return os.pread(fd, self.disk_mib << 20, 0)
            finally:
                os.close(fd)
        except OSError as exc:
            raise Refused(f"{path}: {exc.strerror}") from exc
        finally:
            os.close(folder)

    def _folder_of(self, path: str, makes: bool) -> tuple[int, str]:
        """Return an open folder and the name in it. No step follows a link or leaves the session's files."""
        *above, name = path.split("/")
        if not name or any(part in ("", ".", "..") for part in [*above, name]) or "\0" in path:
            raise Refused(f"{path!r} is no path below the working folder")
        here = os.open(self.path, _FOLDER)
        for part in above:
            try:
                if makes:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o700, dir_fd=here)
                after = os.open(part, _FOLDER, dir_fd=here)
            except OSError as exc:
                raise Refused(f"{path}: {exc.strerror}") from exc
            finally:
                os.close(here)
            here = after
        return here, name

    def pack(self) -> bytes:
        """Return all files as bytes, equal for equal files. Raises: Refused where they nest too deep."""
        root = os.open(self.path, _FOLDER)
        try:
            return marshal.dumps(list(_walk(root, b"")), 2)
        finally:
            os.close(root)

    def unpack(self, packed: bytes) -> None:
        """Make the files of `pack` in an empty room. Raises: Refused where there is no room."""
        entries: list[Entry] = marshal.loads(packed)
        try:
            for path, is_folder, mode, size, stretches in entries:
                place = os.path.join(os.fsencode(self.path), path)
                if is_folder:
                    os.mkdir(place, 0o700)
                    continue
                fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o600)
                try:
                    os.ftruncate(fd, size)
                    for at, data in stretches:
                        _write(fd, data, at)
                    os.fchmod(fd, mode)
                finally:
                    os.close(fd)
            for path, is_folder, mode, _, _ in reversed(entries):
                if is_folder:
                    os.chmod(os.path.join(os.fsencode(self.path), path), mode)
        except OSError as exc:
            raise Refused(f"the files do not fit: {exc.strerror}") from exc


def _walk(folder: int, above: bytes, depth: int = 0) -> Iterator[Entry]:
    if depth > _MOST_DEPTH:
        raise Refused(f"folders are nested deeper than {_MOST_DEPTH}")
    for name in sorted(map(os.fsencode, os.listdir(folder))):
        path, status = above + name, os.lstat(name, dir_fd=folder)
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISDIR(status.st_mode):
            with _opened(folder, name, _FOLDER, mode) as inner:
                yield path, True, mode, 0, []
                yield from _walk(inner, path + b"/", depth + 1)
        elif stat.S_ISREG(status.st_mode):
            with _opened(folder, name, os.O_RDONLY | _FILE, mode) as inner:
                stretches = list(_stretches(inner, status.st_size))
            yield path, False, mode, status.st_size, stretches


@contextlib.contextmanager
def _opened(folder: int, name: bytes, flags: int, mode: int) -> Iterator[int]:
    """Open an entry, also one that its program has closed to itself."""
    try:
        fd = os.open(name, flags, dir_fd=folder)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=folder)
        try:
            fd = os.open(name, flags, dir_fd=folder)
        finally:
            os.chmod(name, mode, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


def _stretches(fd: int, size: int) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:  # only a hole is left
            return
        at = min(size, os.lseek(fd, start, os.SEEK_HOLE))
        yield start, os.pread(fd, at - start, start)


def _write(fd: int, data: bytes, at: int) -> None:
    view: Any = memoryview(data)
    while view:
        done = os.pwrite(fd, view, at)
        view, at = view[done:], at + done
