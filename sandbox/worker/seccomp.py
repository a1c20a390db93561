"""A seccomp allowlist as BPF: every system call that is not named is refused with EPERM."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable

from . import kernel, syscalls

_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_LOAD_VALUE, _LOAD_STORED, _LOAD_X_STORED, _STORE = 0x00, 0x60, 0x61, 0x02
_MOVE_TO_X, _COPY_FROM_X, _AND, _SHIFT_LEFT_X, _SHIFT_RIGHT = 0x07, 0x87, 0x54, 0x6C, 0x74
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_EPERM, _ENOSYS, _ENOTTY = 1, 38, 25
_AT_NUMBER, _AT_ARCH, _AT_ARGUMENTS = 0, 4, 16
_X32_BIT = 0x40000000
_CLONE_THREAD, _CLONE_NEW_ANY = 0x00010000, 0x7E020080  # the latter: every CLONE_NEW* bit
_AF_UNIX = 1
# TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, for isatty and non-blocking streams
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# F_DUPFD..F_GETFL, F_GETLK..F_SETLKW, F_DUPFD_CLOEXEC, F_GETPIPE_SZ, F_GET_SEALS. F_SETOWN is not here: it aims SIGIO
# at others.
_FCNTLS = (0, 1, 2, 3, 5, 6, 7, 1030, 1032, 1034)
_F_SETFL = 4
# O_APPEND, O_ASYNC, O_NOATIME and O_DIRECT: all that F_SETFL can set but O_NONBLOCK.
_SET_ONCE = {"x86_64": 0x46400, "aarch64": 0x52400}
_RLIMIT_STACK = 3
_PRCTLS = (15, 16, 23, 0x53564D41)  # thread names, PR_CAPBSET_READ, PR_SET_VMA; never PR_SET_PDEATHSIG

MACHINES = tuple(syscalls.TABLES)

Instruction = tuple[int, int, int, int]


class Filter(ctypes.Structure):
    """struct sock_fprog, ready to install."""

    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def _argument(index: int, high: bool = False) -> Instruction:
    return (_LOAD, 0, 0, _AT_ARGUMENTS + 8 * index + (4 if high else 0))


def _return(action: int) -> Instruction:
    return (_RETURN, 0, 0, action)


def _one_of(index: int, values: Iterable[int], else_action: int) -> list[Instruction]:
    allowed_values = list(values)
    tests = [(_EQUAL, len(allowed_values) - i, 0, v) for i, v in enumerate(allowed_values)]
    return [_argument(index), *tests, _return(else_action), _return(_ALLOW)]


def _null(index: int) -> list[Instruction]:
    return [
        _argument(index),
        (_EQUAL, 0, 3, 0),
        _argument(index, high=True),
        (_EQUAL, 0, 1, 0),
        _return(_ALLOW),
        _return(_ERRNO | _EPERM),
    ]


def _limits_that_stay() -> list[Instruction]:
    """Return the tests for prlimit64(2): limits may be read, and no limit can be set.

    To set the size of one's own stack succeeds and changes nothing, since programs for judges begin with that call.
    """
    return [
        _argument(1),
        (_EQUAL, 0, 7, _RLIMIT_STACK),
        _argument(0),
        (_EQUAL, 0, 5, 0),
        _argument(3),
        (_EQUAL, 0, 3, 0),
        _argument(3, high=True),
        (_EQUAL, 0, 1, 0),
        _return(_ERRNO),
        *_null(2),
    ]


def _no_flags_but_nonblock(machine: str) -> list[Instruction]:
    """Return the tests that refuse F_SETFL with other flags, and continue with other calls of fcntl(2)."""
    return [
        _argument(1),
        (_EQUAL, 0, 4, _F_SETFL),
        _argument(2),
        (_ANY_BIT, 0, 1, _SET_ONCE[machine]),
        _return(_ERRNO | _EPERM),
        _return(_ALLOW),
    ]


def _guards(machine: str, own_pid: int | None, forks: bool) -> dict[str, list[Instruction]]:
    denied = _ERRNO | _EPERM
    if forks:
        clone = [_argument(0), (_ANY_BIT, 1, 0, _CLONE_NEW_ANY & ~0x80), _return(_ALLOW), _return(denied)]
    else:
        clone = [_argument(0), (_ANY_BIT, 0, 1, _CLONE_THREAD), _return(_ALLOW), _return(denied)]
    guards = {
        "clone": clone,
        "clone3": [_return(_ERRNO | _ENOSYS)],  # its flags are behind a pointer; libc falls back to clone
        "ioctl": _one_of(1, _IOCTLS, _ERRNO | _ENOTTY),
        "fcntl": _no_flags_but_nonblock(machine) + _one_of(1, _FCNTLS, denied),
        "prlimit64": _limits_that_stay(),
        "socketpair": _one_of(0, (_AF_UNIX,), denied),
        "sendto": _null(4),
        "recvfrom": _null(4),
    }
    if forks:
        guards["prctl"] = _one_of(0, _PRCTLS, denied)
        guards["sched_setaffinity"] = _one_of(0, (0,), denied)  # only its own: at level 2 the forker has the same uid
    if own_pid is not None:
        guards |= {name: _one_of(0, (own_pid,), denied) for name in ("kill", "tkill", "tgkill")}
    return guards


def _rules(machine: str, own_pid: int | None, forks: bool) -> tuple[dict[str, int], dict[str, list[Instruction]]]:
    """Return the calls that are always allowed, and those that are allowed with certain arguments.

    Signals may go only to `own_pid` (None: to nobody). With `forks`, processes may be made and programs executed, in no
    new namespace, and seccomp bounds no signals: a pid namespace or Landlock must do that.
    """
    table = dict(syscalls.TABLES[machine])
    if forks:
        table |= syscalls.EXEC[machine]
        del table["prctl"], table["sched_setaffinity"]
        table |= {name: _number(machine, name) for name in ("kill", "tkill", "tgkill")}
        own_pid = None
    return table, _guards(machine, own_pid, forks)


def _assembled(machine: str, allowed: Iterable[int], guards: dict[str, list[Instruction]]) -> list[Instruction]:
    code: list[Instruction] = [
        (_LOAD, 0, 0, _AT_ARCH),
        (_EQUAL, 1, 0, syscalls.AUDIT_ARCH[machine]),
        _return(_KILL_PROCESS),
        (_LOAD, 0, 0, _AT_NUMBER),
    ]
    if machine == "x86_64":
        code += [(_AT_LEAST, 0, 1, _X32_BIT), _return(_ERRNO | _ENOSYS)]
    for name, body in guards.items():
        code += [(_EQUAL, 0, len(body), _number(machine, name)), *body]
    return [*code, *_lookup(allowed)]


def outer(machine: str, own_pid: int | None, forks: bool = False, sessions: bool = False) -> list[Instruction]:
    """Return the larger part of the whole filter, for the forker. It still allows the calls that `inner` closes.

    A child needs these before its program runs: to be made, and to set limits, capabilities and its death signal.
    """
    table, guards = _rules(machine, own_pid, forks)
    for name in _closed_by_inner(own_pid, forks, sessions):
        guards.pop(name, None)
        table[name] = _number(machine, name)
    return _assembled(machine, table.values(), guards)


def inner(machine: str, own_pid: int | None, forks: bool = False, sessions: bool = False) -> list[Instruction]:
    """Return the rest of the filter, for the child. It is short, because the kernel compiles it in every run.

    `own_pid` is the one that may get signals if `outer` had None, else None.
    """
    guards = _rules(machine, own_pid, forks)[1]
    code: list[Instruction] = [(_LOAD, 0, 0, _AT_NUMBER)]
    for name in _closed_by_inner(None if own_pid is not None else 1, forks, sessions):
        body = guards.get(name, [_return(_ERRNO | _EPERM)])
        code += [(_EQUAL, 0, len(body), _number(machine, name)), *body]
    return [*code, _return(_ALLOW)]


def _closed_by_inner(own_pid: int | None, forks: bool, sessions: bool) -> tuple[str, ...]:
    always: tuple[str, ...] = ("clone", "prlimit64", "prctl", "capset")
    if sessions:
        always += tuple(syscalls.SESSION_SETUP["x86_64"])
    elif forks:
        always += ("landlock_restrict_self",)
    if forks:
        return (*always, "setpgid")
    return always if own_pid is not None else (*always, "kill", "tkill", "tgkill")


def _number(machine: str, name: str) -> int:
    return {
        **syscalls.GUARDED[machine],
        **syscalls.EXEC[machine],
        **syscalls.SETUP[machine],
        **syscalls.SESSION_SETUP[machine],
    }[name]


def _lookup(numbers: Iterable[int]) -> list[Instruction]:
    """Return the code that allows these numbers and no other: a bitmap, which is shorter than one test per number."""
    words: dict[int, int] = {}
    for number in numbers:
        words[number >> 5] = words.get(number >> 5, 0) | 1 << (number & 31)
    code: list[Instruction] = [
        (_MOVE_TO_X, 0, 0, 0),
        (_AND, 0, 0, 31),
        (_STORE, 0, 0, 0),
        (_COPY_FROM_X, 0, 0, 0),
        (_SHIFT_RIGHT, 0, 0, 5),
        (_STORE, 0, 0, 1),
        (_LOAD_X_STORED, 0, 0, 0),
        (_LOAD_VALUE, 0, 0, 1),
        (_SHIFT_LEFT_X, 0, 0, 0),
        (_LOAD_X_STORED, 0, 0, 1),
        (_STORE, 0, 0, 0),
        (_COPY_FROM_X, 0, 0, 0),
    ]
    body: list[Instruction] = []
    for word, bits in sorted(words.items()):
        body += [(_EQUAL, 0, 2, word), (_LOAD_STORED, 0, 0, 0), (_ANY_BIT, 0, 0, bits)]
    # Every bit test jumps to the two returns at the end; its distance is known only now.
    total = len(body)
    for index in range(2, total, 3):
        body[index] = (_ANY_BIT, total - index, total - index - 1, body[index][3])
    return [*code, *body, _return(_ERRNO | _EPERM), _return(_ALLOW)]


def assemble(code: list[Instruction]) -> Filter:
    """Return the instructions in the kernel's form."""
    raw = b"".join(struct.pack("HBBI", *step) for step in code)
    return Filter(len(code), raw)


def install(program: Filter) -> None:
    """Put this thread and all that it starts under the filter. no_new_privs must be set."""
    kernel.prctl(kernel.PR_SET_SECCOMP, kernel.SECCOMP_MODE_FILTER, ctypes.byref(program))
