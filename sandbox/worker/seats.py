"""One session as the keeper holds it: its files, its interpreter, and the call that is under way."""

from __future__ import annotations

import contextlib
import marshal
import os
import signal
from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol

from . import answers, cells, frames, kernel, process_flood
from .interpreters import Interpreter
from .makers import Makers
from .rooms import Refused, Room
from .watching import Allowed, Watch

_TOKEN_BYTES = 8


class Host(Protocol):
    """The loop that holds the seats."""

    makers: Makers
    seats: dict[int, Seat]
    watched: set[Seat]

    def listen(self, fd: int, act: Callable[[], None]) -> None:
        """Have `act` called whenever `fd` is readable."""

    def ignore(self, fd: int) -> None:
        """Listen to `fd` no more."""


class Seat:
    """One session. Its interpreter, if it has one, is halted unless `watch` is set."""

    def __init__(self, host: Host, connection: int, number: int, order: dict[str, Any]) -> None:
        """Open a session. Raises: Refused; OSError."""
        self.host, self.owner, self.number, self.order = host, answers.Owner(connection), number, order
        self.outputs = answers.Outputs()
        self.room: Room | None = None
        self.state = b""
        """Folder and environment that the last line of the shell left."""
        self.interpreter: Interpreter | None = None
        self.line = False
        """True while a line of the shell runs, whose process `running` is; the interpreter is halted then too."""
        self.running = self.running_fd = -1
        self.watch: Watch | None = None
        self.token, self.folded, self.last, self.calls = b"", "", monotonic(), 0
        self.is_lost = False
        host.listen(connection, self.hear)
        try:
            self.limits, self.idle_s = Allowed(*order["limits"]), float(order["idle_s"])
            self.rebuild()
        except Exception as exc:
            self.owner.reply({"broken": f"the session could not begin: {type(exc).__name__}: {exc!a:.300}"})
            self.close()
            raise
        self.owner.reply({"scratch": self.own_room.scratch}, list(self.outputs.both))

    @property
    def own_room(self) -> Room:
        """The files. Raises: Refused while the session is folded."""
        if self.room is None:
            raise Refused("the session is folded")
        return self.room

    @property
    def is_alive(self) -> bool:
        """True if there is an interpreter, with what its cells have made."""
        return self.interpreter is not None

    @property
    def can_fold(self) -> bool:
        """True if something would be won by folding, and nothing is under way."""
        return self.watch is None and not self.folded and self.calls > 0

    def hear(self) -> None:
        """Do what the owner asks."""
        try:
            order, files = self.owner.hear()
        except Exception:  # bytes that are no order
            order, files = None, []
        if order is None or self.watch is not None:  # an owner that does not wait for its answer is broken
            self.close()
            return
        self.last = monotonic()
        if self.folded and order["do"] != "rebuild":
            self.owner.reply({"folded": self.folded})
            return
        try:
            self.do(order, files)
        except Exception as exc:  # an odd value of one client ends no session of another
            self.owner.reply(answers.failure(exc))
        finally:
            for fd in files:
                os.close(fd)

    def do(self, order: dict[str, Any], files: list[int]) -> None:
        """Carry out an order. Raises: Refused; OSError."""
        kind, room = order["do"], self.room
        if kind in ("python", "shell"):
            self.calls += 1
            self.begin(order)
            return
        answer: dict[str, Any] = {}
        made: list[int] = []
        if kind == "rebuild":
            self.rebuild()
        elif room is None:
            raise Refused("the session is folded")
        elif kind == "write":
            self.calls += 1
            room.write(order["path"], os.pread(files[0], os.fstat(files[0]).st_size, 0))
        elif kind == "read":
            made = [answers.file(room.read(order["path"]))]
        elif kind in ("pack", "digest"):
            packed = room.pack()
            answer = {"digest": answers.digest(packed), "state": self.state, "alive": self.is_alive}
            made = [answers.file(packed)] if kind == "pack" else []
        elif kind == "unpack":
            room.unpack(os.pread(files[0], os.fstat(files[0]).st_size, 0))
            self.state = order["state"]
        elif kind == "fold":
            self.fold()
        else:
            raise Refused(f"no order {kind!r}")
        self.owner.reply(answer, made)
        for fd in made:
            os.close(fd)

    def begin(self, order: dict[str, Any]) -> None:
        """Begin a call. Its answer comes when it has ended. Raises: OSError."""
        limits = self.limits._replace(wall_s=order["wall_s"], cpu_s=order["cpu_s"])
        self.outputs.empty()
        self.token = os.urandom(_TOKEN_BYTES)
        if order["do"] == "shell":
            if self.host.makers.shell is None:
                raise Refused("this pool has no tools: make it with Pool(tools=sandbox.TOOLS)")
            self.line = True
            self.running, self.running_fd = self.spawn(cells.LINE, order["text"], limits, -1)
        else:
            interpreter = self.interpreter or self.start(limits)
            os.write(interpreter.link, marshal.dumps((self.token, order["text"]), 2))
            self.running, self.running_fd = interpreter.pid, interpreter.pidfd
        maker = self.host.makers.shell if self.line else self.host.makers.python
        assert maker is not None
        outputs = self.outputs.both if self.line else ()  # a cell is told by the limit of a file's size
        self.watch = Watch(self.running, limits, maker.cell, self.own_room.is_over, outputs)
        self.host.watched.add(self)
        if not self.line:
            interpreter.go_on()

    def start(self, limits: Allowed) -> Interpreter:
        """Start the interpreter and return it. Raises: OSError."""
        link, theirs = kernel.socket_pair()
        os.set_blocking(link, False)
        try:
            pid, pidfd = self.spawn(cells.CELLS, "", limits, theirs)
        except BaseException:
            os.close(link)
            raise
        finally:
            os.close(theirs)
        self.interpreter = Interpreter(self.host.makers.python, pid, pidfd, link)
        self.host.listen(link, self.heard_end)
        return self.interpreter

    def spawn(self, kind: int, text: str, limits: Allowed, link: int) -> tuple[int, int]:
        """Start a program of the session; return its pid and a descriptor of it. Raises: OSError."""
        left = os.memfd_create("left", os.MFD_CLOEXEC)
        maker = self.host.makers.shell if kind == cells.LINE else self.host.makers.python
        assert maker is not None
        try:
            files = [*self.outputs.both, link if link >= 0 else left, left]
            pid = maker.spawn(self.own_room, (kind, self.state, self.order["seed"], text), files, limits)
        except BaseException:
            os.close(left)
            raise
        self.outputs.keep(left)
        fd = os.pidfd_open(pid)
        self.host.listen(fd, self.died if kind != cells.LINE else self.line_died)
        return pid, fd

    def heard_end(self) -> None:
        """Take the end of the present call; all else that comes on this descriptor is nobody's."""
        interpreter = self.interpreter
        if interpreter is None or (packet := interpreter.heard()) is None:
            return
        if not packet:
            self.host.ignore(interpreter.link)  # closed by the program: its death or a limit will end the call
            return
        watch = self.watch
        if watch is None or self.line or len(packet) != cells.END.size or watch.why != frames.ENDED:
            return
        token, state, code, *begins, out, err = cells.END.unpack(packet)
        if token != self.token:
            return
        ends = self.outputs.within(out, err)
        answer = answers.answer(None, min(state, frames.BAD_VALUE), code, frames.ENDED, ends)
        answer["begins"] = tuple(map(min, begins, ends))
        answer["cpu"] = watch.used()
        if not interpreter.halt():
            self.died()
            return
        self.finish(answer)

    def died(self) -> None:
        """Take the death of the interpreter."""
        self.heard_end()  # of a cell whose process ended at once
        watch, interpreter = self.watch, self.interpreter
        if interpreter is None or not interpreter.has_ended:
            return
        code = interpreter.status()
        cpu = self.bury()
        if watch is None or self.line:  # killed in its sleep, by nobody that we know of: its calls make it again
            self.is_lost = True
            if watch is None:
                self.fold()
            return
        failure = self.host.makers.python.failure(code)
        if failure:
            self.end_watch()
            self.owner.reply({"broken": f"no process: {os.strerror(failure)} {answers.tail(self.outputs.err)}"})
            return
        self.finish(answers.answer(code, 0, 0, watch.why, self.outputs.sizes(), max(0.0, cpu - watch.cpu)))

    def line_died(self) -> None:
        """Take the death of a line of the shell, and of all that it started."""
        maker, watch = self.host.makers.shell, self.watch
        assert maker is not None
        assert watch is not None
        self.host.ignore(self.running_fd)
        os.close(self.running_fd)
        status, cpu = maker.reap(self.running)
        self.line, self.running = False, -1
        if failure := maker.failure(status):
            self.end_watch()
            self.owner.reply({"broken": f"no process: {os.strerror(failure)} {answers.tail(self.outputs.err)}"})
            return
        if watch.why == frames.ENDED:
            self.state = self.outputs.state(cells.MOST_STATE) or self.state
        self.finish(answers.answer(status, 0, 0, watch.why, self.outputs.sizes(), cpu))

    def finish(self, answer: dict[str, Any]) -> None:
        """End the call and answer its caller."""
        watch = self.watch
        assert watch is not None
        now = self.last = monotonic()
        self.end_watch()
        if self.own_room.is_over() and answer["why"] == frames.ENDED:
            answer["why"] = frames.DISK
        if self.is_lost:
            self.fold()
        self.owner.reply(answer | {"wall": now - watch.start, "alive": self.is_alive})

    def end_watch(self) -> None:
        """Look at the call no more."""
        self.watch = None
        self.host.watched.discard(self)

    def bury(self) -> float:
        """End the interpreter, if there is one; return its CPU seconds."""
        interpreter, self.interpreter = self.interpreter, None
        if interpreter is None:
            return 0.0
        self.host.ignore(interpreter.link)
        self.host.ignore(interpreter.pidfd)
        return interpreter.bury()

    def rebuild(self) -> None:
        """Begin again with no files and no interpreter, as at first."""
        self.fold()
        self.folded, self.state, self.is_lost = "", b"", False
        self.room = Room(self.host.makers.main_cell, self.number, self.order["disk_mib"], self.order["files"])

    def fold(self) -> None:
        """End the interpreter and drop the files; keep their digest, with which a replay is compared."""
        self.bury()
        if self.room is None:
            return
        try:
            self.folded = answers.digest(self.room.pack())
        except Refused as exc:
            self.folded = str(exc)
        self.room.remove()
        self.room = None

    def close(self) -> None:
        """End everything of the session."""
        if self.line:
            maker = self.host.makers.shell
            assert maker is not None
            process_flood.kill(self.running)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.running, signal.SIGKILL)
            self.host.ignore(self.running_fd)
            os.close(self.running_fd)
            maker.reap(self.running)
        self.bury()
        self.end_watch()
        if self.room is not None:
            self.room.remove()
        self.host.ignore(self.owner.sock.fileno())
        self.host.seats.pop(self.owner.sock.fileno(), None)
        self.owner.sock.close()
        self.outputs.close()
