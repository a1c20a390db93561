"""Typed calls into the Linux kernel that the standard library lacks. They raise OSError with the call's name."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Sequence

CLONE_PARENT = 0x00008000
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_CHILD_CLEARTID = 0x00200000
CLONE_CHILD_SETTID = 0x01000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
MNT_DETACH = 2

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_SECCOMP, PR_SET_SECUREBITS = 1, 4, 8, 22, 28
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_GET_TID_ADDRESS = 36, 38, 40
SECCOMP_MODE_FILTER = 2
CAP_DAC_READ_SEARCH = 2
ALL_SECUREBITS_LOCKED = 0x2F  # no uid-0 capabilities at exec, none kept over setuid, and no way back

_OPEN_TREE, _MOVE_MOUNT = 428, 429  # the same numbers on every architecture
_HERE, _TREE_CLONE, _FROM_DESCRIPTOR = -100, 1, 4
_AF_UNIX, _SEQPACKET = 1, 5
_CONTROL_BYTES, _CONTROL_HEAD = 128, 16

MACHINE = os.uname().machine
_BY_MACHINE = {"x86_64": {"clone": 56, "pivot_root": 155}, "aarch64": {"clone": 220, "pivot_root": 41}}
NUMBERS = _BY_MACHINE.get(MACHINE, {})

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def syscall(number: int, *args: object, what: str) -> int:
    """Make a raw system call and return its result. Raises: OSError."""
    return _check(int(libc.syscall(number, *args)), what)


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Mount a file system. See mount(2)."""
    encoded = [None if x is None else x.encode() for x in (source, target, kind, data)]
    result = libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    _check(result, f"mount {kind or source} on {target}")


def unmount(target: str) -> None:
    """Unmount a file system, lazily. See umount2(2)."""
    _check(libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def unshare(flags: int) -> None:
    """Move this process into new namespaces. See unshare(2)."""
    _check(libc.unshare(flags), f"unshare {flags:#x}")


def set_host_name(name: str) -> None:
    """Name the machine in this process's namespace. See sethostname(2)."""
    _check(libc.sethostname(name.encode(), len(name)), "sethostname")


def pivot_root(new: str, old: str) -> None:
    """Change the root of the file tree. See pivot_root(2)."""
    syscall(NUMBERS["pivot_root"], new.encode(), old.encode(), what="pivot_root")


def enter_mounts(fd: int) -> None:
    """Move this process, which must have one thread, into the mount namespace of an open file. See setns(2)."""
    _check(libc.setns(fd, CLONE_NEWNS), "setns")


def copy_of_mount(path: str) -> int:
    """Return a descriptor of a copy of the mount at `path`, which is attached nowhere. See open_tree(2)."""
    return syscall(_OPEN_TREE, _HERE, path.encode(), _TREE_CLONE | os.O_CLOEXEC, what=f"open_tree {path}")


def attach_mount(fd: int, path: str) -> None:
    """Attach the mount of `copy_of_mount` at `path`. See move_mount(2)."""
    syscall(_MOVE_MOUNT, fd, b"", _HERE, path.encode(), _FROM_DESCRIPTOR, what=f"move_mount {path}")


def socket_pair() -> tuple[int, int]:
    """Return two connected sockets for packets. Not by `socket`: every child would have to copy that module."""
    pair = (ctypes.c_int * 2)()
    _check(libc.socketpair(_AF_UNIX, _SEQPACKET | os.O_CLOEXEC, 0, pair), "socketpair")
    return pair[0], pair[1]


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _Message(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_void_p), ("name_size", ctypes.c_uint32), ("vectors", ctypes.c_void_p),
        ("count", ctypes.c_size_t), ("control", ctypes.c_void_p), ("control_size", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )  # fmt: skip


def receive(fd: int, max_bytes: int = 4096) -> tuple[bytes, list[int]]:
    """Return one packet and the descriptors that came with it. Raises: OSError. See recvmsg(2)."""
    data, control = ctypes.create_string_buffer(max_bytes), ctypes.create_string_buffer(_CONTROL_BYTES)
    vector = _Vector(ctypes.addressof(data), max_bytes)
    message = _Message(None, 0, ctypes.addressof(vector), 1, ctypes.addressof(control), _CONTROL_BYTES, 0)
    size = _check(int(libc.recvmsg(fd, ctypes.byref(message), 0)), "recvmsg")
    if message.control_size < _CONTROL_HEAD:
        return ctypes.string_at(data, size), []
    length = int.from_bytes(control.raw[:8], "little")
    numbers = memoryview(control.raw[_CONTROL_HEAD:length]).cast("i")
    return ctypes.string_at(data, size), list(numbers)


def prctl(option: int, a: object, b: object = 0) -> None:
    """Change a setting of this process. See prctl(2)."""
    if libc.prctl(option, a, b, 0, 0) < 0:
        _check(-1, f"prctl {option}")


_CAPABILITY_HEADER = (ctypes.c_uint32 * 2)(0x20080522, 0)
_CapabilitySets = ctypes.c_uint32 * 6  # effective, permitted, inheritable; then the same for capabilities from 32 on


def has_capability(number: int) -> bool:
    """True if this process may use the capability. Raises: OSError."""
    sets = _CapabilitySets()
    _check(libc.capget(_CAPABILITY_HEADER, sets), "capget")
    return bool(sets[0] >> number & 1)


def keep_capabilities(numbers: Sequence[int]) -> None:
    """Give up all capabilities but these, for good. Executed programs inherit none. Raises: OSError."""
    mask = sum(1 << number for number in numbers)
    _check(_capset(_CAPABILITY_HEADER, _CapabilitySets(mask, mask)), "capset")


def drop_capabilities() -> None:
    """Give up all capabilities, for good. Raises: OSError."""
    _check(_capset(_CAPABILITY_HEADER, _NO_CAPABILITIES), "capset")


# Made once for all children: each that makes its own writes to some forty pages more, which the kernel then copies.
_capset = libc.capset
_NO_CAPABILITIES = _CapabilitySets()


_tid = ctypes.c_void_p()
_TID_ADDRESS = 0 if libc.prctl(PR_GET_TID_ADDRESS, ctypes.byref(_tid), 0, 0, 0) else int(_tid.value or 0)


def fork(namespaces: int) -> int:
    """Return the child's pid, and 0 in the child, which is the first process of new `namespaces` (0: none).

    With CLONE_PARENT it is our sibling. This is raw clone(2), without the interpreter's work after a fork, which a
    single-threaded parent that holds no lock does not need. libc's record of the thread id is kept right.
    """
    return syscall(_CLONE, namespaces | _FORK_FLAGS, _NONE, _NONE, *_FORK_LAST, what="clone")


_CLONE = NUMBERS.get("clone", -1)
_FORK_FLAGS = int(signal.SIGCHLD) | ((CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID) if _TID_ADDRESS else 0)
_NONE = ctypes.c_void_p(0)
_WORD = ctypes.byref(ctypes.c_int.from_address(_TID_ADDRESS)) if _TID_ADDRESS else None
# The two architectures differ in the order of the last two arguments: (child_tid, tls) and (tls, child_tid).
_FORK_LAST = (_WORD, _NONE) if MACHINE == "x86_64" else (_NONE, _WORD)
