"""One session in the keeper: its files, its interpreter, and its present call."""

from __future__ import annotations

import contextlib
import marshal
import os
import signal
from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol

from . import answers, cells, frames, kernel, process_group
from .interpreters import Interpreter
from .program_forkers import ProgramForkers
from .session_folder import OrderRefused, SessionFolder
from .watching import RunLimits, Watch

_TOKEN_BYTES = 8


class Loop(Protocol):
    """The keeper's event loop, as its sessions use it."""

    forkers: ProgramForkers
    sessions: dict[int, KeeperSession]
    watched: set[KeeperSession]

    def listen(self, fd: int, action: Callable[[], None]) -> None:
        """Call `action` whenever `fd` is readable, until `ignore`."""

    def ignore(self, fd: int) -> None:
        """Stop listening to `fd`."""


class KeeperSession:
    """One session. If it has an interpreter, that is halted unless a call is watched."""

    def __init__(self, loop: Loop, fd: int, number: int, order: dict[str, Any]) -> None:
        """Open a session for the client at `fd`. Raises: OrderRefused; OSError."""
        self.loop, self.connection, self.number, self.order = loop, answers.Connection(fd), number, order
        self.outputs = answers.Outputs()
        self.folder: SessionFolder | None = None
        self.state = b""
        """Folder and environment after the last shell line."""
        self.interpreter: Interpreter | None = None
        self.is_shell_line = False
        """True while a shell line runs. Then `running_pid` is its process, and the interpreter is halted."""
        self.running_pid = self.running_pidfd = -1
        self.watch: Watch | None = None
        self.token, self.last_call_s, self.num_calls = b"", monotonic(), 0
        self.digest_when_folded = ""
        """Digest of the files if the session is folded, else empty."""
        self.is_lost = False
        loop.listen(fd, self.on_order)
        try:
            self.limits, self.idle_s = RunLimits(*order["limits"]), float(order["idle_s"])
            self.rebuild()
        except Exception as exc:
            self.connection.reply({"broken": f"the session could not begin: {type(exc).__name__}: {exc!a:.300}"})
            self.close()
            raise
        self.connection.reply({"scratch": self.present_folder.scratch}, list(self.outputs.both))

    @property
    def present_folder(self) -> SessionFolder:
        """The session's files. Raises: OrderRefused while it is folded."""
        if self.folder is None:
            raise OrderRefused("the session is folded")
        return self.folder

    @property
    def is_alive(self) -> bool:
        """True if there is an interpreter, with the variables of its cells."""
        return self.interpreter is not None

    @property
    def can_fold(self) -> bool:
        """True if the session has been called, no call is under way, and it is not folded yet."""
        return self.watch is None and not self.digest_when_folded and self.num_calls > 0

    def on_order(self) -> None:
        """Read and carry out an order of the client."""
        try:
            order, files = self.connection.receive()
        except Exception:  # bytes that are no order
            order, files = None, []
        if order is None or self.watch is not None:  # a client that does not wait for its answer is broken
            self.close()
            return
        self.last_call_s = monotonic()
        if self.digest_when_folded and order["do"] != "rebuild":
            self.connection.reply({"folded": self.digest_when_folded})
            return
        try:
            self.carry_out(order, files)
        except Exception as exc:  # a malformed order of one client must not end the sessions of others
            self.connection.reply(answers.failure(exc))
        finally:
            for fd in files:
                os.close(fd)

    def carry_out(self, order: dict[str, Any], files: list[int]) -> None:
        """Carry out an order. Raises: OrderRefused; OSError."""
        kind, folder = order["do"], self.folder
        if kind in ("python", "shell"):
            self.num_calls += 1
            self.begin_call(order)
            return
        answer: dict[str, Any] = {}
        new_files: list[int] = []
        if kind == "rebuild":
            self.rebuild()
        elif folder is None:
            raise OrderRefused("the session is folded")
        elif kind == "write":
            self.num_calls += 1
            folder.write(order["path"], os.pread(files[0], os.fstat(files[0]).st_size, 0))
        elif kind == "read":
            new_files = [answers.file(folder.read(order["path"]))]
        elif kind in ("pack", "digest"):
            packed = folder.pack()
            answer = {"digest": answers.digest(packed), "state": self.state, "alive": self.is_alive}
            new_files = [answers.file(packed)] if kind == "pack" else []
        elif kind == "unpack":
            folder.unpack(os.pread(files[0], os.fstat(files[0]).st_size, 0))
            self.state = order["state"]
        elif kind == "fold":
            self.fold()
        else:
            raise OrderRefused(f"no order {kind!r}")
        self.connection.reply(answer, new_files)
        for fd in new_files:
            os.close(fd)

    def begin_call(self, order: dict[str, Any]) -> None:
        """Begin a call; `finish_call` answers it. Raises: OSError."""
        limits = self.limits._replace(wall_s=order["wall_s"], cpu_s=order["cpu_s"])
        self.outputs.empty()
        self.token = os.urandom(_TOKEN_BYTES)
        if order["do"] == "shell":
            if self.loop.forkers.shell is None:
                raise OrderRefused("this pool has no tools: make it with Pool(tools=sandbox.TOOLS)")
            self.is_shell_line = True
            self.running_pid, self.running_pidfd = self.start_program(cells.LINE, order["text"], limits, -1)
        else:
            interpreter = self.interpreter or self.start_interpreter(limits)
            os.write(interpreter.link, marshal.dumps((self.token, order["text"]), 2))
            self.running_pid, self.running_pidfd = interpreter.pid, interpreter.pidfd
        forker = self.loop.forkers.shell if self.is_shell_line else self.loop.forkers.python
        assert forker is not None
        outputs = self.outputs.both if self.is_shell_line else ()  # RLIMIT_FSIZE makes a cell fail by itself
        self.watch = Watch(self.running_pid, limits, forker.jail, self.present_folder.is_over, outputs)
        self.loop.watched.add(self)
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
        self.interpreter = Interpreter(self.loop.forkers.python, pid, pidfd, link)
        self.loop.listen(link, self.on_message)
        return self.interpreter

    def start_program(self, kind: int, text: str, limits: RunLimits, link: int) -> tuple[int, int]:
        """Start a program of the session; return its pid and pidfd. Raises: OSError."""
        state_file = os.memfd_create("left", os.MFD_CLOEXEC)
        forker = self.loop.forkers.shell if kind == cells.LINE else self.loop.forkers.python
        assert forker is not None
        try:
            files = [*self.outputs.both, link if link >= 0 else state_file, state_file]
            pid = forker.spawn(self.present_folder, (kind, self.state, self.order["seed"], text), files, limits)
        except BaseException:
            os.close(state_file)
            raise
        self.outputs.replace_state_file(state_file)
        fd = os.pidfd_open(pid)
        self.loop.listen(fd, self.on_interpreter_death if kind != cells.LINE else self.on_shell_death)
        return pid, fd

    def on_message(self) -> None:
        """Read the interpreter's message that the call has ended; ignore any other message."""
        interpreter = self.interpreter
        if interpreter is None or (packet := interpreter.read_message()) is None:
            return
        if not packet:
            self.loop.ignore(interpreter.link)  # closed by the program: its death or a limit will end the call
            return
        watch = self.watch
        if watch is None or self.is_shell_line or len(packet) != cells.CALL_END.size or watch.why != frames.ENDED:
            return
        token, state, code, *begins, out, err = cells.CALL_END.unpack(packet)
        if token != self.token:
            return
        ends = self.outputs.capped(out, err)
        answer = answers.answer(None, min(state, frames.BAD_VALUE), code, frames.ENDED, ends)
        answer["begins"] = tuple(map(min, begins, ends))
        answer["cpu"] = watch.used()
        if not interpreter.halt():
            self.on_interpreter_death()
            return
        self.finish_call(answer)

    def on_interpreter_death(self) -> None:
        """End the call whose interpreter has died; without a call, the session is lost and folded."""
        self.on_message()  # the last cell may have ended before its process did
        watch, interpreter = self.watch, self.interpreter
        if interpreter is None or not interpreter.has_ended:
            return
        code = interpreter.status()
        cpu = self.end_interpreter()
        if watch is None or self.is_shell_line:  # killed while halted, not by us: a replay will rebuild it
            self.is_lost = True
            if watch is None:
                self.fold()
            return
        failure = self.loop.forkers.python.failure(code)
        if failure:
            self._reply_no_process(failure)
            return
        self.finish_call(
            answers.answer(code, 0, 0, watch.why, self.outputs.sizes(), max(0.0, cpu - watch.cpu_before_s))
        )

    def on_shell_death(self) -> None:
        """End the call whose shell has ended, and kill all processes that it has started."""
        forker, watch = self.loop.forkers.shell, self.watch
        assert forker is not None
        assert watch is not None
        self.loop.ignore(self.running_pidfd)
        os.close(self.running_pidfd)
        status, cpu = forker.reap(self.running_pid)
        self.is_shell_line, self.running_pid = False, -1
        if failure := forker.failure(status):
            self._reply_no_process(failure)
            return
        if watch.why == frames.ENDED:
            self.state = self.outputs.state(cells.MAX_STATE) or self.state
        self.finish_call(answers.answer(status, 0, 0, watch.why, self.outputs.sizes(), cpu))

    def finish_call(self, answer: dict[str, Any]) -> None:
        """End the call and send its answer."""
        watch = self.watch
        assert watch is not None
        now = self.last_call_s = monotonic()
        self.end_watch()
        if self.present_folder.is_over() and answer["why"] == frames.ENDED:
            answer["why"] = frames.DISK
        if self.is_lost:
            self.fold()
        self.connection.reply(answer | {"wall": now - watch.start, "alive": self.is_alive})

    def _reply_no_process(self, code: int) -> None:
        """End a call for which no process could be made."""
        self.end_watch()
        self.connection.reply({"broken": f"no process: {os.strerror(code)} {answers.beginning(self.outputs.err)}"})

    def end_watch(self) -> None:
        """Stop watching the call."""
        self.watch = None
        self.loop.watched.discard(self)

    def end_interpreter(self) -> float:
        """End the interpreter, if there is one; return its CPU seconds."""
        interpreter, self.interpreter = self.interpreter, None
        if interpreter is None:
            return 0.0
        self.loop.ignore(interpreter.link)
        self.loop.ignore(interpreter.pidfd)
        return interpreter.kill_and_reap()

    def rebuild(self) -> None:
        """Begin again, with no files and no interpreter."""
        self.fold()
        self.digest_when_folded, self.state, self.is_lost = "", b"", False
        self.folder = SessionFolder(
            self.loop.forkers.main_jail, self.number, self.order["disk_mib"], self.order["files"]
        )

    def fold(self) -> None:
        """End the interpreter and remove the files. Keep a digest of them, to compare a replay with."""
        self.end_interpreter()
        if self.folder is None:
            return
        try:
            self.digest_when_folded = answers.digest(self.folder.pack())
        except OrderRefused as exc:
            self.digest_when_folded = str(exc)
        self.folder.remove()
        self.folder = None

    def close(self) -> None:
        """End the session's processes and remove its files."""
        if self.is_shell_line:
            forker = self.loop.forkers.shell
            assert forker is not None
            process_group.kill(self.running_pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.running_pid, signal.SIGKILL)
            self.loop.ignore(self.running_pidfd)
            os.close(self.running_pidfd)
            forker.reap(self.running_pid)
        self.end_interpreter()
        self.end_watch()
        if self.folder is not None:
            self.folder.remove()
        self.loop.ignore(self.connection.sock.fileno())
        self.loop.sessions.pop(self.connection.sock.fileno(), None)
        self.connection.sock.close()
        self.outputs.close()
