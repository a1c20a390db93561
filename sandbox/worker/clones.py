"""Live copies of a session's interpreter.

The first copy freezes the interpreter for good: it is traced from then on and runs no instruction of its own any more.
Copies are made of this template, one for each fork, and for its own session when that continues. A copy is the first
process of new user, process and mount namespaces, which lie within the template's. So it would end with the template,
and this is why the template must not run: no program that runs has a copy below it.

A copy is held before its first instruction. There it loses the capabilities that a new user namespace brings, every
descriptor and the working folder; it gets its own, and a Landlock domain within the template's. Seccomp, limits and
no_new_privs come with it. What the kernel would let both share keeps an interpreter from being copied (`Unfit`).
"""

from __future__ import annotations

import array
import errno
import functools
import os
import stat
import struct

from . import kernel, process_flood
from .interpreters import Copy, Interpreter
from .jail import Jail
from .makers import bound_processes
from .rooms import Room
from .tracing import Disobeyed, Traced, end

_MOST_DEAD = 16
"""Dead copies that a template has not buried yet."""
_LOOK_EVERY_MS = 20
_CLONE, _DUP2, _CLOSE_RANGE, _CHDIR, _GETCWD = 56, 33, 436, 80, 79
_CAPSET, _RECVMSG, _RESTRICT, _WAIT4, _GETITIMER = 126, 47, 446, 61, 36
_LINK, _RULES, _KEPT, _LAST = 3, 5, 63, (1 << 32) - 1
"""Descriptors: of a copy its connection, and the rules for a while; of the template its connection, and no other."""
_NOHANG, _MSG_DONTWAIT, _TIMERS = 1, 64, 3
_STANDARD = {"0", "1", "2", "3", "4"}
_MOST_DEPTH = 12
"""Copies of copies: each has a Landlock domain within the last, and the kernel has 16."""
_MOST_PATH = 1024
_VERSION = 0x20080522


class Unfit(Exception):
    """The interpreter cannot be copied; the message says why."""


class Template:
    """An interpreter that is frozen for good, and of which copies are made. It ends when nobody needs it any more."""

    def __init__(self, model: Interpreter, room: Room, outputs: tuple[int, int, int]) -> None:
        """Freeze a halted interpreter with files in `room`. Raises: Unfit, and it continues as before; OSError."""
        self.model, self.maker, self.depth = model, model.maker, depth(model) + 1
        if not self.maker.cell.clones:
            raise Unfit("this machine or level has no live copies")
        if self.depth > _MOST_DEPTH:
            raise Unfit(f"a copy of a copy, {_MOST_DEPTH} times")
        self.is_dead, self.users, self.dead = False, 1, list[int]()
        """Dead, too, is a template that cannot be copied any more."""
        if isinstance(model, Copy) and not model.is_stopped():  # it may have been copied just now
            raise Unfit("it has ended")
        examine(self.maker.cell, model.pid, outputs)
        try:
            self.held = Traced(model.pid)
        except Disobeyed as exc:
            raise Unfit(str(exc)) from exc
        try:
            self.folder = self._folder()
            self._map_user()
            self.held.call(_DUP2, _LINK, _KEPT)
            bound_processes(model.pid, None)
        except (Unfit, OSError) as exc:
            self.held.let_go()
            raise Unfit(str(exc)) from exc
        import _socket

        self.sock = _socket.socket(fileno=os.dup(model.link))
        room.detach(model.pid, self.maker.home)
        self.held.call(_CLOSE_RANGE, 0, _KEPT - 1, 0)

    def _folder(self) -> bytes:
        """Return the working folder. Raises: Unfit if there is none, or if a timer runs; Disobeyed."""
        held = self.held
        for timer in range(_TIMERS):
            held.call(_GETITIMER, timer, held.room)
            if any(held.read(held.room + 16, 16)):
                raise Unfit("a timer runs")
        try:
            size = held.call(_GETCWD, held.room, _MOST_PATH)
        except Disobeyed:
            raise
        except OSError as exc:
            raise Unfit("its working folder is gone, or its name is too long") from exc
        return held.read(held.room, size)

    def _map_user(self) -> None:
        """Map the user of the template's namespace, without which it could hold no other. Raises: OSError.

        It keeps the number that a user without a number has, so that no program sees a difference. The map must be
        written from the namespace above. That is ours, or another template's, which a child of ours has to enter.
        """
        proc, model = self.maker.cell.proc, self.model
        number = int(_read(proc, "sys/kernel/overflowuid"))
        if not isinstance(model, Copy):
            _write_maps(proc, model.pid, f"{number} 0 1")
            return
        above = os.open(f"{model.parent.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
        try:
            pid = kernel.fork(0)
            if pid == 0:
                try:
                    kernel.enter_user(above)
                    _write_maps(proc, model.pid, f"{number} {number} 1")
                    os._exit(0)
                finally:
                    os._exit(1)
        finally:
            os.close(above)
        if os.waitpid(pid, 0)[1]:
            raise OSError(errno.EPERM, "uid_map: not permitted")

    @property
    def pid(self) -> int:
        """The process."""
        return self.model.pid

    def copy(self, room: Room, outputs: tuple[int, int, int], processes: int) -> Copy:
        """Return a new copy, halted where the template was, with its files in `room`.

        `outputs` are its own output, errors and state. Raises: OSError; then no copy can be made of this template.
        """
        if self.is_dead:
            raise OSError(errno.ESRCH, "the template of the copies is gone")
        everywhere = os.sched_getaffinity(0)
        try:
            # On one CPU with us, it answers sooner than if another had to be woken for each call.
            here = {kernel.libc.sched_getcpu()}
            os.sched_setaffinity(0, here)
            os.sched_setaffinity(self.pid, here)
            copy = self._copy(room, outputs, processes)
            os.sched_setaffinity(copy.pid, everywhere)
            return copy
        except OSError:
            self.is_dead = True
            raise
        finally:
            os.sched_setaffinity(0, everywhere)

    def _copy(self, room: Room, outputs: tuple[int, int, int], processes: int) -> Copy:
        if len(self.dead) > _MOST_DEAD:
            for number in self.dead:
                self.held.call(_WAIT4, number, 0, _NOHANG, 0)
            self.dead.clear()
        held, number = self.held.fork(_CLONE, kernel.CLONE_LIVE)
        opened = list[int]()
        try:
            opened += kernel.socket_pair()
            opened.append(os.pidfd_open(held.pid))
            link, theirs, pidfd = opened
            room.attach(held.pid, self.maker.home)
            bound_processes(held.pid, processes)
            self._settle(held, (outputs[0], outputs[1], theirs, outputs[2]))
            held.let_go()
        except BaseException:
            end(held.pid)
            for fd in opened:
                os.close(fd)
            raise
        os.close(theirs)
        os.set_blocking(link, False)
        self.users += 1
        return Copy(self.maker, held.pid, pidfd, link, (self, number))

    def _settle(self, held: Traced, files: tuple[int, ...]) -> None:
        """Take from the new process what it has of the template, and give it its own. Raises: OSError; Disobeyed."""
        rules = self.maker.cell.rules
        assert rules is not None
        at = held.room
        held.write(at, struct.pack("=II24x", _VERSION, 0))
        held.call(_CAPSET, at, at + 8)
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            sent = array.array("i", [nothing, *files, rules])
            self.sock.sendmsg([b"x"], [(1, 1, sent)])
        finally:
            os.close(nothing)
        vector, byte, control, size = at + 64, at + 96, at + 128, 16 + sent.itemsize * len(sent)
        message = struct.pack("=QI4xQQQQi4x", 0, 0, vector, 1, control, size, 0)
        held.write(at, message.ljust(64, b"\0") + struct.pack("=QQ", byte, 1))
        held.call(_RECVMSG, _KEPT, at, _MSG_DONTWAIT)  # into the lowest places, since all are free
        held.call(_RESTRICT, _RULES, 0)
        held.call(_CLOSE_RANGE, _RULES, _LAST, 0)
        held.write(at, self.folder)
        held.call(_CHDIR, at)
        if _descriptors(self.maker.cell.proc, held.pid) != _STANDARD:
            raise Disobeyed("it has other descriptors")

    def leave(self, number: int) -> None:
        """Forget the copy that the template knows by this number, which is dead."""
        self.dead.append(number)
        self.release()

    def release(self) -> None:
        """End the template if this was its last user."""
        self.users -= 1
        if self.users:
            return
        self.is_dead = True
        self.sock.close()
        self.model.kill()
        while not self.model.ends_within(_LOOK_EVERY_MS):
            self._end_children()
        self.model.bury()

    def _end_children(self) -> None:
        """End the children of a template without users, which is being killed.

        If something kills the template in the act of making a copy, the kernel has the copy traced by us without
        telling us so. Such a copy ends too, but the template cannot end before we have heard of the copy's end.
        """
        proc, parent = self.maker.cell.proc, str(self.pid).encode()
        for name in filter(str.isdecimal, os.listdir(proc)):
            fields = process_flood.fields_of(proc, name)
            if fields and fields[process_flood.PARENT] == parent:
                end(int(name))


def depth(model: Interpreter) -> int:
    """Return the number of templates above an interpreter."""
    return model.parent.depth if isinstance(model, Copy) else 0


def examine(cell: Jail, pid: int, outputs: tuple[int, int, int]) -> None:
    """Look for what a halted interpreter would share with its copies, or lose in them. Raises: Unfit; OSError.

    `outputs` are the descriptors of its output, its errors and its state.
    """
    status = dict(line.split(b":", 1) for line in _read(cell.proc, f"{pid}/status").splitlines())
    if status[b"Threads"].strip() != b"1":
        raise Unfit("it has other threads")
    if int(status[b"SigPnd"], 16) or int(status[b"ShdPnd"], 16):
        raise Unfit("a signal waits")
    if _descriptors(cell.proc, pid) != _STANDARD:
        raise Unfit("it has open files or has closed its streams")
    null, out, err, link, state = (os.stat(f"{pid}/fd/{n}", dir_fd=cell.proc) for n in range(5))
    ours = [(s.st_dev, s.st_ino) for s in map(os.fstat, outputs)]
    is_null = stat.S_ISCHR(null.st_mode) and null.st_rdev == os.makedev(1, 3)
    if not is_null or [(s.st_dev, s.st_ino) for s in (out, err, state)] != ours or not stat.S_ISSOCK(link.st_mode):
        raise Unfit("it has changed its streams")
    libraries = tuple(os.fsencode(f"{folder}/") for folder in cell.readable)
    for line in _read(cell.proc, f"{pid}/maps").splitlines():
        _, rights, _, device, inode, *name = line.split(None, 5)
        is_own = inode == b"0" and not rights.endswith(b"s")
        # Nobody can write to a library, so that it may be shared: libc has a table of one mapped so.
        if not (is_own or (device, inode) in _mapped(cell.proc) or name[0].startswith(libraries)):
            raise Unfit("it has files or shared memory mapped")


@functools.cache
def _mapped(proc: int) -> frozenset[tuple[bytes, bytes]]:
    """Return device and number of every file that the keeper has mapped itself, as all interpreters have."""
    rows = [line.split(None, 5) for line in _read(proc, f"{os.getpid()}/maps").splitlines()]
    return frozenset((row[3], row[4]) for row in rows if row[4] != b"0")


def _write_maps(proc: int, pid: int, line: str) -> None:
    """Map one user and one group of a process's user namespace. Raises: OSError."""
    for name in ("uid_map", "gid_map"):
        fd = os.open(f"{pid}/{name}", os.O_WRONLY | os.O_CLOEXEC, dir_fd=proc)
        try:
            os.write(fd, line.encode())
        finally:
            os.close(fd)


def _descriptors(proc: int, pid: int) -> set[str]:
    folder = os.open(f"{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc)
    try:
        return set(os.listdir(folder))
    finally:
        os.close(folder)


def _read(proc: int, path: str) -> bytes:
    """Return a whole file below an open /proc. Raises: OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    try:
        return b"".join(iter(lambda: os.read(fd, 1 << 16), b""))
    finally:
        os.close(fd)
