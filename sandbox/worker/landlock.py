"""Landlock: restrict the files that a process and its descendants may open. It needs no privilege."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Sequence

from . import kernel

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # the same numbers on every architecture
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV


def abi() -> int:
    """Return the kernel's Landlock version, 0 if it has none.

    1 files, 2 moves between folders, 3 truncation, 4 TCP, 5 device ioctl, 6 signals and abstract unix sockets.
    """
    return max(0, int(kernel.libc.syscall(_CREATE, None, 0, 1)))


def ruleset(read: Sequence[str], write: Sequence[str], execute: Sequence[str] = ()) -> int:
    """Return a descriptor of rules: files and folders to read, to write, to read and execute. All others are closed.

    Paths that do not exist are left out. Raises: OSError if the kernel has no Landlock.
    """
    version = abi()
    handled = (1 << 13) - 1
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV)):
        handled |= right if version >= since else 0
    attributes = struct.pack("QQQ", handled, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    fd = kernel.syscall(_CREATE, attributes, size, 0, what="landlock_create_ruleset")
    read_rights = _READ_FILE | _READ_DIR
    write_rights = read_rights | _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER | _TRUNCATE
    for paths, rights in ((read, read_rights), (execute, read_rights | _EXECUTE), (write, write_rights)):
        for path in paths:
            _allow(fd, path, rights & handled)
    return fd


def _allow(fd: int, path: str, rights: int) -> None:
    try:
        target = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not stat.S_ISDIR(os.fstat(target).st_mode):
        rights &= _ON_FILES
    try:
        kernel.syscall(_ADD_RULE, fd, 1, struct.pack("=Qi", rights, target), 0, what=f"landlock_add_rule {path}")
    finally:
        os.close(target)


def restrict(fd: int) -> None:
    """Put this thread under the rules of `fd`; no_new_privs must be set."""
    kernel.syscall(_RESTRICT, fd, 0, what="landlock_restrict_self")
