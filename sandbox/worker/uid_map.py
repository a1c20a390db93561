"""A user namespace whose root is a host user of our choice."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from . import kernel


def unshare_user_as_root(uid: int, proc: int) -> int:
    """Enter a new user namespace and return the host uid of its root: `uid`, or our own if `uid` cannot be mapped."""
    ready_read, ready_write = os.pipe()
    answer_read, answer_write = os.pipe()
    our_pid = os.getpid()
    mapper = os.fork()  # stays in the old namespace, where it may map any uid
    if mapper == 0:
        os.close(ready_write)
        os.read(ready_read, 1)
        os.write(answer_write, _map_ids(proc, our_pid, (uid, os.geteuid())).to_bytes(8, "little"))
        os._exit(0)
    try:
        kernel.unshare(kernel.CLONE_NEWUSER)
    finally:
        os.write(ready_write, b"1")
        uid_plus_one = int.from_bytes(os.read(answer_read, 8), "little")
        os.waitpid(mapper, 0)
        for fd in (ready_read, ready_write, answer_read, answer_write):
            os.close(fd)
    if not uid_plus_one:
        raise OSError(errno.EPERM, "uid_map: not permitted")
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    return uid_plus_one - 1


def _map_ids(proc: int, pid: int, candidates: Sequence[int]) -> int:
    """Map root of `pid`'s user namespace to the first uid that works. Return one more than that uid, or 0 for none."""
    for uid in candidates:
        try:
            for name in ("uid_map", "gid_map"):
                fd = os.open(f"{pid}/{name}", os.O_WRONLY, dir_fd=proc)
                os.write(fd, f"0 {uid} 1".encode())
                os.close(fd)
            return uid + 1
        except OSError:
            continue
    return 0
