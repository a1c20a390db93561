"""The keeper of sessions: it starts their programs, resumes one for each call, and halts it afterwards.

One thread serves every session. It never waits for a program: a program that does not answer is killed at its limits.
Each session has a connection of its own to its client. When that closes, the session ends.
"""

from __future__ import annotations

import contextlib
import json
import marshal
import os
import resource
import select
import signal
import sys
from collections.abc import Callable
from time import monotonic
from typing import Any

from . import cells, disk, frames, kernel, processes, streams, walls
from .session_processes import KEEPER_FOLDER, Interpreter, ProgramForkers, SessionFolder
from .watching import RunLimits, Watch

_DESCRIPTORS_PER_SESSION = 8
"""Descriptors that a session may need at one time."""
_SPARE_DESCRIPTORS = 64
_MOST_PAUSE_S = 1.0
"""Seconds after which a next child is asked for again, where the forker could make none."""
_TOKEN_BYTES = 8
_MAX_PACKET = 256 << 10
_MSG_PEEK, _MSG_DONTWAIT = 2, 64


def main(jail: walls.Jail, caller: int, config: dict[str, Any]) -> None:
    """Serve sessions until the caller is gone. Raises: WallFailed."""
    bounds = config["sessions"]
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # needed to enter the mount namespaces of children
    max_descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max_descriptors, max_descriptors))
    if jail.cgroup is not None:
        jail.cgroup.bound(bounds["memory_mib"], 0, 0, bounds["sessions"] * bounds["processes"])
    forkers = ProgramForkers(jail, config)
    mounts = -1
    if jail.has_namespaces:
        kernel.unshare(kernel.CLONE_NEWNS)  # no child sees what is mounted after this
        flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
        kernel.mount("tmpfs", KEEPER_FOLDER, "tmpfs", flags, "mode=700")
        mounts = os.open(f"{os.getpid()}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=jail.proc)
    elif jail.tools:
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    max_sessions = min(bounds["sessions"], (max_descriptors - _SPARE_DESCRIPTORS) // _DESCRIPTORS_PER_SESSION)
    for forker in forkers.all:
        forker.prepare(mounts)
    keeper = Keeper(caller, forkers, max_sessions)
    walls_that_hold = keeper.test_walls()
    hello = {"notes": jail.notes, "python": sys.version.split()[0], "tried": walls_that_hold}
    os.write(streams.CONTROL, json.dumps(hello).encode())
    keeper.serve()


class Keeper:
    """The event loop over all sessions of a pool."""

    def __init__(self, caller: int, forkers: ProgramForkers, max_sessions: int) -> None:
        self.forkers, self.max_sessions = forkers, max_sessions
        self.sessions: dict[int, KeeperSession] = {}
        self.actions: dict[int, Callable[[], None]] = {}
        """Descriptor -> function to call when it is readable."""
        self.poll = select.epoll()
        self.control, self.num_opened = streams.CONTROL, 0
        self.listen(caller, self.end)
        self.listen(self.control, self.open)
        self.watched: set[KeeperSession] = set()

    def listen(self, fd: int, action: Callable[[], None]) -> None:
        """Call `action` whenever `fd` is readable, until `ignore`."""
        self.actions[fd] = action
        self.poll.register(fd, select.EPOLLIN)

    def ignore(self, fd: int) -> None:
        """Stop listening to `fd`."""
        if self.actions.pop(fd, None) is not None:
            self.poll.unregister(fd)

    def serve(self) -> None:
        """Serve all sessions. Never returns."""
        while True:
            now = monotonic()
            next_look = min([now + _MOST_PAUSE_S, *(s.watch.next_look for s in self.watched if s.watch is not None)])
            for fd, _ in self.poll.poll(max(0.0, next_look - now) + 0.001):
                action = self.actions.get(fd)
                if action is not None:
                    self.try_to(action)
            now = monotonic()
            for session in [s for s in self.watched if s.watch is not None and s.watch.next_look <= now]:
                assert session.watch is not None
                self.try_to(session.watch.look, session)
            for forker in self.forkers.all:
                with contextlib.suppress(OSError):  # the next `spawn` raises it to a session
                    forker.refill()

    def try_to(self, action: Callable[[], object], session: Any = None) -> None:
        """Call `action`. If it raises, close its session only: the other sessions continue."""
        session = getattr(action, "__self__", self) if session is None else session
        try:
            action()
        except Exception as exc:
            if isinstance(session, KeeperSession):
                session.connection.reply({"broken": f"the session failed: {type(exc).__name__}: {exc!a:.300}"})
                with contextlib.suppress(Exception):
                    session.close()

    def end(self) -> None:
        """Close all sessions and end this process."""
        for session in list(self.sessions.values()):
            session.close()
        if not self.forkers.main_jail.has_namespaces:
            with contextlib.suppress(OSError):
                disk.empty(self.forkers.main_jail.scratch)
        os._exit(0)

    def open(self) -> None:
        """Open a session, by an order on the control socket."""
        packet, files = kernel.receive(self.control)
        if not packet:
            self.end()
        order, connection = marshal.loads(packet), _Connection(files[0])
        if len(self.sessions) >= self.max_sessions:  # some may be closed, and their sockets not yet read
            for session in [s for s in self.sessions.values() if s.connection.is_closed]:
                session.close()
        if len(self.sessions) >= self.max_sessions:
            connection.refuse(f"{self.max_sessions} sessions are open; close some, or raise `ulimit -n`")
            return
        self.num_opened += 1
        try:
            folder = SessionFolder(self.forkers.main_jail, self.num_opened, order["disk_mib"])
        except OSError as exc:
            connection.refuse(f"the session could not begin: {exc}")
            return
        self.sessions[files[0]] = KeeperSession(self, connection, RunLimits(*order["limits"]), folder)

    def test_walls(self) -> dict[str, bool]:
        """Try the walls around a program of a session; return which hold. Raises: OSError if no program starts."""
        folder = SessionFolder(self.forkers.main_jail, 0, 4)
        files = [os.memfd_create(name, os.MFD_CLOEXEC) for name in ("out", "err", "log")]
        out, err, log = files
        try:
            limits = RunLimits(20.0, 10.0, 64, 64, 16)
            forker = self.forkers.python
            status, _ = forker.reap(forker.spawn(folder, (cells.TEST, b"", ""), [out, err, log, log], limits))
            records = frames.read_records(os.pread(log, 4096, 0), 1)
            if not records:
                raise walls.WallFailed("self-test", OSError(5, f"{status}: {os.pread(err, 2000, 0)!r}"))
            return json.loads(records[0].value)  # type: ignore[no-any-return]
        finally:
            for fd in files:
                os.close(fd)
            folder.remove()


class KeeperSession:
    """One session. If it has an interpreter, that is halted unless a call is watched."""

    def __init__(self, keeper: Keeper, connection: _Connection, limits: RunLimits, folder: SessionFolder) -> None:
        self.keeper, self.connection, self.limits, self.folder = keeper, connection, limits, folder
        self.outputs = _Outputs()
        self.state = b""
        """Folder and environment after the last shell line."""
        self.interpreter: Interpreter | None = None
        self.is_shell_line = False
        """True while a shell line runs. Then `running_pid` is its process, and the interpreter is halted."""
        self.running_pid = self.running_pidfd = -1
        self.watch: Watch | None = None
        self.token = b""
        self.lost = ""
        """Why the session can do nothing more; empty if it can."""
        keeper.listen(connection.sock.fileno(), self.on_order)
        connection.reply({"scratch": folder.scratch}, list(self.outputs.both))

    def on_order(self) -> None:
        """Carry out an order of the client; end the session if the client is gone."""
        order = self.connection.receive()
        if order is None or self.watch is not None:  # a client that does not wait for its answer is broken
            self.close()
            return
        try:
            if self.lost:
                raise OSError(self.lost)
            self.begin_call(order)
        except OSError as exc:
            self.connection.reply({"broken": str(exc)})

    def begin_call(self, order: dict[str, Any]) -> None:
        """Begin a call; `finish_call` answers it. Raises: OSError."""
        limits = self.limits._replace(wall_s=order["wall_s"], cpu_s=order["cpu_s"])
        self.outputs.empty()
        self.token = os.urandom(_TOKEN_BYTES)
        if order["do"] == "shell":
            self.running_pid, self.running_pidfd = self.start_program(cells.LINE, order["text"], limits, -1)
            self.is_shell_line = True
        else:
            interpreter = self.interpreter or self.start_interpreter(limits)
            os.write(interpreter.link, marshal.dumps((self.token, order["text"]), 2))
            self.running_pid, self.running_pidfd = interpreter.pid, interpreter.pidfd
        forker = self.keeper.forkers.shell if self.is_shell_line else self.keeper.forkers.python
        assert forker is not None
        outputs = self.outputs.both if self.is_shell_line else ()  # RLIMIT_FSIZE makes a cell fail by itself
        self.watch = Watch(self.running_pid, limits, forker.jail, self.folder.is_over, outputs)
        self.keeper.watched.add(self)
        if not self.is_shell_line:
            interpreter.resume()

    def start_interpreter(self, limits: RunLimits) -> Interpreter:
        """Start the interpreter and return it. Raises: OSError."""
        link, child_link = kernel.socket_pair()
        os.set_blocking(link, False)
        try:
            pid, pidfd = self.start_program(cells.CELLS, "", limits, child_link)
        except BaseException:
            os.close(link)
            raise
        finally:
            os.close(child_link)
        self.interpreter = Interpreter(self.keeper.forkers.python, pid, pidfd, link)
        self.keeper.listen(link, self.on_message)
        return self.interpreter

    def start_program(self, kind: int, text: str, limits: RunLimits, link: int) -> tuple[int, int]:
        """Start a program of the session; return its pid and pidfd. Raises: OSError."""
        state_file = os.memfd_create("left", os.MFD_CLOEXEC)
        forker = self.keeper.forkers.shell if kind == cells.LINE else self.keeper.forkers.python
        assert forker is not None
        try:
            files = [*self.outputs.both, link if link >= 0 else state_file, state_file]
            pid = forker.spawn(self.folder, (kind, self.state, text), files, limits)
        except BaseException:
            os.close(state_file)
            raise
        if self.outputs.state_file >= 0:
            os.close(self.outputs.state_file)
        self.outputs.state_file = state_file
        fd = os.pidfd_open(pid)
        self.keeper.listen(fd, self.on_interpreter_death if kind != cells.LINE else self.on_shell_death)
        return pid, fd

    def on_message(self) -> None:
        """Read the interpreter's message that the call has ended; ignore any other message."""
        interpreter = self.interpreter
        if interpreter is None or (packet := interpreter.read_message()) is None:
            return
        if not packet:
            self.keeper.ignore(interpreter.link)  # closed by the program: its death or a limit will end the call
            return
        watch = self.watch
        if watch is None or self.is_shell_line or len(packet) != cells.CALL_END.size or watch.why != frames.ENDED:
            return
        token, state, code, *begins, out, err = cells.CALL_END.unpack(packet)
        if token != self.token:
            return
        ends = self.outputs.capped(out, err)
        answer = _answer(None, min(state, frames.BAD_VALUE), code, frames.ENDED, ends)
        answer["begins"] = tuple(map(min, begins, ends))
        answer["cpu"] = watch.used()
        if not interpreter.halt():
            self.on_interpreter_death()
            return
        self.finish_call(answer)

    def on_interpreter_death(self) -> None:
        """End the call whose interpreter has died; without a call, the session is lost."""
        self.on_message()  # the last cell may have ended before its process did
        watch, interpreter = self.watch, self.interpreter
        if interpreter is None or not interpreter.has_ended:
            return
        code = interpreter.status()
        cpu = self.end_interpreter()
        if watch is None or self.is_shell_line:
            self.lost = "its interpreter was killed between two calls"
            return
        if failure := self.keeper.forkers.python.failure(code):
            self._reply_no_process(failure)
            return
        self.finish_call(_answer(code, 0, 0, watch.why, self.outputs.sizes(), max(0.0, cpu - watch.cpu_before_s)))

    def on_shell_death(self) -> None:
        """End the call whose shell has ended, and kill all processes that it has started."""
        forker, watch = self.keeper.forkers.shell, self.watch
        assert forker is not None
        assert watch is not None
        self.keeper.ignore(self.running_pidfd)
        os.close(self.running_pidfd)
        status, cpu = forker.reap(self.running_pid)
        self.is_shell_line, self.running_pid = False, -1
        if failure := forker.failure(status):
            self._reply_no_process(failure)
            return
        if watch.why == frames.ENDED:
            self.state = self.outputs.state(cells.MAX_STATE) or self.state
        self.finish_call(_answer(status, 0, 0, watch.why, self.outputs.sizes(), cpu))

    def finish_call(self, answer: dict[str, Any]) -> None:
        """End the call and send its answer."""
        watch = self.watch
        assert watch is not None
        self.end_watch()
        group = self.keeper.forkers.main_jail.cgroup
        is_killed = answer["why"] == frames.ENDED and answer["status"] == signal.SIGKILL
        # Asked only of a call that was killed: all sessions share the group, and asking forgets.
        if is_killed and group is not None and group.has_new_kills():
            answer["why"] = frames.MEMORY
        if self.folder.is_over() and answer["why"] == frames.ENDED:
            answer["why"] = frames.DISK
        self.connection.reply(answer | {"wall": monotonic() - watch.start, "alive": self.interpreter is not None})

    def _reply_no_process(self, code: int) -> None:
        """End a call for which no process could be made."""
        self.end_watch()
        errors = os.pread(self.outputs.err, 500, 0).decode(errors="replace")
        self.connection.reply({"broken": f"no process: {os.strerror(code)} {errors}"})

    def end_watch(self) -> None:
        """Stop watching the call."""
        self.watch = None
        self.keeper.watched.discard(self)

    def end_interpreter(self) -> float:
        """End the interpreter, if there is one; return its CPU seconds."""
        interpreter, self.interpreter = self.interpreter, None
        if interpreter is None:
            return 0.0
        self.keeper.ignore(interpreter.link)
        self.keeper.ignore(interpreter.pidfd)
        return interpreter.kill_and_reap()

    def close(self) -> None:
        """End the session's processes and remove its files."""
        if self.is_shell_line:
            forker = self.keeper.forkers.shell
            assert forker is not None
            processes.kill(self.running_pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.running_pid, signal.SIGKILL)
            self.keeper.ignore(self.running_pidfd)
            os.close(self.running_pidfd)
            forker.reap(self.running_pid)
        self.end_interpreter()
        self.end_watch()
        self.folder.remove()
        self.keeper.ignore(self.connection.sock.fileno())
        self.keeper.sessions.pop(self.connection.sock.fileno(), None)
        self.connection.sock.close()
        self.outputs.close()


def _answer(
    status: int | None, state: int, code: int, why: int, ends: tuple[int, int] = (0, 0), cpu: float = 0.0
) -> dict[str, Any]:
    """Return the answer to a call. `status`: the wait status if its process died; else `state` and `code` count."""
    return {"status": status, "state": state, "code": code, "why": why, "begins": (0, 0), "ends": ends, "cpu": cpu,
            "wall": 0.0, "alive": True}  # fmt: skip


class _Connection:
    """The keeper's end of a session's connection to its client."""

    def __init__(self, connection: int) -> None:
        import _socket

        self.sock = _socket.socket(fileno=connection)

    @property
    def is_closed(self) -> bool:
        """True if the client has closed its end."""
        try:
            return not self.sock.recv(1, _MSG_PEEK | _MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def refuse(self, why: str) -> None:
        """Answer a client whose session cannot be opened, and close the connection."""
        self.reply({"broken": why})
        self.sock.close()

    def reply(self, answer: dict[str, Any], files: list[int] | None = None) -> None:
        """Answer the client, which waits for one answer to each order."""
        import array

        ancillary = [(1, 1, array.array("i", files))] if files else []
        try:
            self.sock.sendmsg([marshal.dumps(answer, 2)], ancillary)
        except OSError:  # the client is gone; the next `receive` notices it
            return

    def receive(self) -> dict[str, Any] | None:
        """Return the client's order; None if the client is gone."""
        try:
            packet = self.sock.recv(_MAX_PACKET)
        except OSError:
            packet = b""
        return marshal.loads(packet) if packet else None


class _Outputs:
    """The files to which programs of a session write: output, errors, and the state after a shell line."""

    def __init__(self) -> None:
        self.out, self.err = (os.memfd_create(name, os.MFD_CLOEXEC) for name in ("out", "err"))
        self.state_file = -1

    def empty(self) -> None:
        """Empty output and errors."""
        for fd in self.both:
            os.ftruncate(fd, 0)
            os.lseek(fd, 0, os.SEEK_SET)

    def sizes(self) -> tuple[int, int]:
        """Return the sizes of output and errors."""
        return os.fstat(self.out).st_size, os.fstat(self.err).st_size

    def capped(self, out: int, err: int) -> tuple[int, int]:
        """Return claimed ends of output and errors, cut at the real sizes."""
        own_out, own_err = self.sizes()
        return min(out, own_out), min(err, own_err)

    @property
    def both(self) -> tuple[int, int]:
        """The descriptors of output and errors."""
        return self.out, self.err

    def state(self, max_bytes: int) -> bytes | None:
        """Return the state in the file; None if it is empty or longer than `max_bytes`."""
        count = os.fstat(self.state_file).st_size
        return os.pread(self.state_file, count, 0) if 0 < count <= max_bytes else None

    def close(self) -> None:
        """Close all files."""
        for fd in (*self.both, self.state_file):
            if fd >= 0:
                os.close(fd)
