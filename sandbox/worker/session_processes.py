"""The processes and files of sessions: forkers, one for Python and one for shell lines if the pool has tools."""

from __future__ import annotations

import array
import contextlib
import copy
import marshal
import os
import resource
import select
import signal
from typing import Any

from . import disk, forker, frames, kernel, processes, walls
from .watching import RunLimits

_SOL_SOCKET, _SCM_RIGHTS, _MSG_DONTWAIT = 1, 1, 64


class ProgramForker:
    """A forker of a keeper. Its waiting child becomes the next program, of any session."""

    def __init__(self, jail: walls.Jail, host_file: str, host_pid: int) -> None:
        self.jail = jail
        self.forker = forker.start(jail, host_file, host_pid)
        self.child_waits, self.last_pid, self.mounts = True, -1, -1
        self.sock: Any = None

    def prepare(self, mounts: int) -> None:
        """Prepare to spawn, once all forkers have started. `mounts` is a descriptor of the keeper's mount namespace."""
        import _socket

        self.mounts, self.sock = mounts, _socket.socket(fileno=self.forker.orders)

    def refill(self, wait_ms: int = 0) -> None:
        """Have the next child made. While the last child's order is unread, make none: it would read that order."""
        if not self.child_waits and not self.forker.unread_orders.poll(0):
            self.forker.request_child()
            self.child_waits = True
        elif wait_ms:
            select.select([], [], [], wait_ms / 1000)
            if self._last_is_dead():
                self.forker.discard()

    def _last_is_dead(self) -> bool:
        """True if the last program can no longer read its order."""
        try:
            return os.waitid(os.P_PID, self.last_pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def spawn(self, folder: SessionFolder, order: tuple[int, bytes, str], files: list[int], limits: RunLimits) -> int:
        """Start a program of a session and return its pid. Raises: OSError if its walls are refused."""
        while not self.child_waits:
            self.refill(wait_ms=1)
        self.child_waits, pid, rules_fd = False, self.forker.waiting_child(), -1
        try:
            folder.attach(pid, self.mounts)
            self._limit(pid, folder, limits)
            kind, state, text = order
            packet = marshal.dumps((kind, folder.scratch, state, text), 2)
            if self.jail.rules_fd is not None:
                # With namespaces, every session's files have the same path: one set of rules is for all.
                is_shared = self.jail.has_namespaces
                rules_fd = self.jail.rules_fd if is_shared else walls.landlock_rules(self.jail, folder.scratch)
            sent = [*files, rules_fd] if rules_fd >= 0 else files
            self.sock.sendmsg([packet], [(_SOL_SOCKET, _SCM_RIGHTS, array.array("i", sent))])
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        finally:
            if rules_fd >= 0 and rules_fd != self.jail.rules_fd:
                os.close(rules_fd)
        self.last_pid = pid
        return pid

    def _limit(self, pid: int, folder: SessionFolder, limits: RunLimits) -> None:
        max_file_bytes = max(folder.disk_mib << 20, limits.output_kib << 11)
        to_set = [
            (resource.RLIMIT_FSIZE, max_file_bytes),
            (resource.RLIMIT_AS, (limits.memory_mib + walls.BASE_MIB) << 20),
        ]
        if self.jail.has_namespaces:  # the kernel counts by user namespace, of which every child has its own
            to_set.append((resource.RLIMIT_NPROC, limits.processes))
        elif self.jail.worker_must_count_processes:
            to_set.append((resource.RLIMIT_NPROC, walls.max_processes(self.jail, limits.processes)))
        for name, value in to_set:
            resource.prlimit(pid, name, (value, value))

    def reap(self, pid: int) -> tuple[int, float]:
        """Return status and CPU seconds of a program that is dead or dying, and end all that it has started."""
        status, usage = processes.end(pid) if self.jail.processes_may_remain else os.wait4(pid, 0)[1:]
        if pid == self.last_pid:  # killed before it read its order, perhaps: no other program may get that order
            self.forker.discard()
        return status, usage.ru_utime + usage.ru_stime

    def failure(self, status: int) -> int:
        """Return the error number of a child without its walls, else 0. Programs cannot write to this socket."""
        if not os.WIFEXITED(status) or os.WEXITSTATUS(status) != frames.SETUP_FAILED:
            return 0
        try:
            report = self.sock.recv(frames.PID.size, _MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        return int(frames.PID.unpack(report)[0])


class ProgramForkers:
    """The forkers of one keeper."""

    def __init__(self, jail: walls.Jail, config: dict[str, Any]) -> None:
        self.main_jail, python_jail = jail, copy.copy(jail)
        # The control group bounds all sessions together. The self-test, which tries one program, cannot prove it.
        python_jail.walls, python_jail.tools = jail.walls - {frames.CGROUP}, ()
        if jail.rules_fd is not None and jail.tools:
            python_jail.rules_fd = walls.landlock_rules(python_jail, python_jail.scratch)
        self.python = ProgramForker(python_jail, config["host_file"], config["host_pid"])
        self.shell = ProgramForker(jail, config["host_file"], config["host_pid"]) if jail.tools else None
        self.all = [each for each in (self.python, self.shell) if each is not None]


class Interpreter:
    """A Python process of a session, which is our child. It is halted except during a call."""

    def __init__(self, forker: ProgramForker, pid: int, pidfd: int, link: int) -> None:
        self.forker, self.pid, self.pidfd, self.link = forker, pid, pidfd, link

    def resume(self) -> None:
        """Let the process run."""
        self._signal(signal.SIGCONT)

    def halt(self) -> bool:
        """Halt the process, and wait until all of its threads have stopped. False if it is dead."""
        self._signal(signal.SIGSTOP)
        state = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if state is None or state.si_code != os.CLD_STOPPED:
            return False
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG)
        with contextlib.suppress(OSError):  # drop messages that the program has sent by itself
            while os.read(self.link, 4096):
                pass
        return True

    def read_message(self) -> bytes | None:
        """Return its message: empty if its end is closed, None if there is none.

        There is none after a stale event, of a closed descriptor whose number was reused.
        """
        try:
            return os.read(self.link, 4096)
        except BlockingIOError:
            return None
        except ConnectionError:
            return b""

    @property
    def has_ended(self) -> bool:
        """True if the process is dead."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def status(self) -> int:
        """Return the wait status of the dead process."""
        info: Any = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        return int(info.si_status) << 8 if info.si_code == os.CLD_EXITED else int(info.si_status)

    def kill_and_reap(self) -> float:
        """Kill the process if it lives, wait for it, and return its CPU seconds."""
        self._signal(signal.SIGKILL)
        _, cpu = self.forker.reap(self.pid)
        os.close(self.link)
        os.close(self.pidfd)
        return cpu

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)


KEEPER_FOLDER = "/in"
"""Folder where the keeper mounts the sessions' file systems. No child sees these mounts."""


class SessionFolder:
    """The files of one session."""

    def __init__(self, jail: walls.Jail, number: int, disk_mib: int) -> None:
        self.jail, self.disk_mib = jail, disk_mib
        self.path = f"{KEEPER_FOLDER if jail.has_namespaces else jail.scratch}/{number}"
        os.mkdir(self.path, 0o700)
        if jail.has_namespaces:
            flags = kernel.MS_NOSUID | kernel.MS_NODEV | (0 if jail.tools else kernel.MS_NOEXEC)
            kernel.mount("tmpfs", self.path, "tmpfs", flags, f"size={disk_mib}m,nr_inodes={disk.MAX_ENTRIES},mode=700")

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
        return not self.jail.has_namespaces and disk.is_over(self.path, self.disk_mib << 20)
