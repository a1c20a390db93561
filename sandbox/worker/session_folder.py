"""The files of a session: a file system of its own, or just a folder if there are no namespaces.

The keeper reads and writes them only while no program of the session runs.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import stat
from collections.abc import Iterator
from typing import Any

from . import disk, kernel, walls

KEEPER_FOLDER = "/in"
"""Folder where the keeper mounts the sessions' file systems. No child sees these mounts."""
_MAX_DEPTH = 48
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
Entry = tuple[bytes, bool, int, int, list[tuple[int, bytes]]]
"""Path, True for a folder, mode, size, and the data of a file as (offset, bytes), without its holes."""


class OrderRefused(Exception):
    """An order that cannot be carried out, by the program's or the client's fault."""


class SessionFolder:
    """The files of one session."""

    def __init__(self, jail: walls.Jail, number: int, disk_mib: int, max_files: int) -> None:
        self.jail, self.disk_mib, self.max_files = jail, disk_mib, max_files
        self.path = f"{KEEPER_FOLDER if jail.has_namespaces else jail.scratch}/{number}"
        os.mkdir(self.path, 0o700)
        if jail.has_namespaces:
            flags = kernel.MS_NOSUID | kernel.MS_NODEV | (0 if jail.tools else kernel.MS_NOEXEC)
            kernel.mount("tmpfs", self.path, "tmpfs", flags, f"size={disk_mib}m,nr_inodes={max_files},mode=700")

    @property
    def scratch(self) -> str:
        """Path of the folder, as the session's programs see it."""
        return self.jail.scratch if self.jail.has_namespaces else self.path

    def attach(self, pid: int, own_mounts: int) -> None:
        """Mount the files for the waiting child `pid`. `own_mounts` is our mount namespace. Raises: OSError."""
        if not self.jail.has_namespaces:
            return
        copy = kernel.copy_of_mount(self.path)
        child_mounts = os.open(f"{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.jail.proc)
        try:
            kernel.enter_mounts(child_mounts)
            try:
                kernel.attach_mount(copy, self.jail.scratch)
            finally:
                kernel.enter_mounts(own_mounts)
        finally:
            os.close(child_mounts)
            os.close(copy)

    def remove(self) -> None:
        """Remove the files."""
        if self.jail.has_namespaces:
            kernel.unmount(self.path)
        else:
            disk.empty(self.path)
        os.rmdir(self.path)

    def is_over(self) -> bool:
        """True if the files are over their limit. With namespaces the kernel keeps the limit, and this is False."""
        return not self.jail.has_namespaces and disk.is_over(self.path, self.disk_mib << 20, self.max_files)

    def write(self, path: str, data: bytes) -> None:
        """Write a file, and make the folders of its path. Raises: OrderRefused."""
        folder, name = self._folder_of(path, True)
        try:
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | _FILE, 0o600, dir_fd=folder)
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise OrderRefused(f"{path} is no plain file")
                os.ftruncate(fd, 0)
                _write(fd, data, 0)
            finally:
                os.close(fd)
        except OSError as exc:
            raise OrderRefused(f"{path}: {exc.strerror}") from exc
        finally:
            os.close(folder)
        if self.is_over():
            os.unlink(f"{self.path}/{path}")
            raise OrderRefused(f"{path}: no room for {len(data)} bytes in {self.disk_mib} MiB")

    def read(self, path: str) -> bytes:
        """Return a file's bytes. Raises: OrderRefused."""
        folder, name = self._folder_of(path, False)
        try:
            fd = os.open(name, os.O_RDONLY | _FILE, dir_fd=folder)
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise OrderRefused(f"{path} is no plain file")
                if os.fstat(fd).st_size > self.disk_mib << 20:
                    raise OrderRefused(f"{path} is larger than {self.disk_mib} MiB")
                return os.pread(fd, self.disk_mib << 20, 0)
            finally:
                os.close(fd)
        except OSError as exc:
            raise OrderRefused(f"{path}: {exc.strerror}") from exc
        finally:
            os.close(folder)

    def _folder_of(self, path: str, makes: bool) -> tuple[int, str]:
        """Return the opened folder of a path, and the name in it. Links are not followed, and `..` is refused."""
        *parents, name = path.split("/")
        if not name or any(part in ("", ".", "..") for part in [*parents, name]) or "\0" in path:
            raise OrderRefused(f"{path!r} is no path below the working folder")
        parent = os.open(self.path, _FOLDER)
        for part in parents:
            try:
                if makes:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o700, dir_fd=parent)
                child = os.open(part, _FOLDER, dir_fd=parent)
            except OSError as exc:
                raise OrderRefused(f"{path}: {exc.strerror}") from exc
            finally:
                os.close(parent)
            parent = child
        return parent, name

    def pack(self) -> bytes:
        """Return all files as bytes, equal for equal files. Raises: OrderRefused if folders are nested too deep."""
        root = os.open(self.path, _FOLDER)
        try:
            return marshal.dumps(list(_walk(root, b"")), 2)
        finally:
            os.close(root)

    def unpack(self, packed: bytes) -> None:
        """Make the files of `pack` in an empty folder. Raises: OrderRefused if they do not fit."""
        entries: list[Entry] = marshal.loads(packed)
        try:
            for path, is_folder, mode, size, extents in entries:
                target = os.path.join(os.fsencode(self.path), path)
                if is_folder:
                    os.mkdir(target, 0o700)
                    continue
                fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o600)
                try:
                    os.ftruncate(fd, size)
                    for offset, data in extents:
                        _write(fd, data, offset)
                    os.fchmod(fd, mode)
                finally:
                    os.close(fd)
            for path, is_folder, mode, _, _ in reversed(entries):
                if is_folder:
                    os.chmod(os.path.join(os.fsencode(self.path), path), mode)
        except OSError as exc:
            raise OrderRefused(f"the files do not fit: {exc.strerror}") from exc


def _walk(folder: int, parents: bytes, depth: int = 0) -> Iterator[Entry]:
    if depth > _MAX_DEPTH:
        raise OrderRefused(f"folders are nested deeper than {_MAX_DEPTH}")
    for name in sorted(map(os.fsencode, os.listdir(folder))):
        path, status = parents + name, os.lstat(name, dir_fd=folder)
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISDIR(status.st_mode):
            with _open_entry(folder, name, _FOLDER, mode) as inner:
                yield path, True, mode, 0, []
                yield from _walk(inner, path + b"/", depth + 1)
        elif stat.S_ISREG(status.st_mode):
            with _open_entry(folder, name, os.O_RDONLY | _FILE, mode) as inner:
                extents = list(_extents(inner, status.st_size))
            yield path, False, mode, status.st_size, extents


@contextlib.contextmanager
def _open_entry(folder: int, name: bytes, flags: int, mode: int) -> Iterator[int]:
    """Open a file or folder, also if its program has removed its own rights."""
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


def _extents(fd: int, size: int) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset < size:
        try:
            start = os.lseek(fd, offset, os.SEEK_DATA)
        except OSError:  # only a hole is left
            return
        offset = min(size, os.lseek(fd, start, os.SEEK_HOLE))
        yield start, os.pread(fd, offset - start, start)


def _write(fd: int, data: bytes, offset: int) -> None:
    view: Any = memoryview(data)
    while view:
        num_written = os.pwrite(fd, view, offset)
        view, offset = view[num_written:], offset + num_written
