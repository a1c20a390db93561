"""Programs of tests that begin with the slow imports done: they are forks of a process that has them.

To import torch and transformers costs five seconds of a core, and tests start hundreds of programs that need them. Call
`warm(MODULES).call(function, ...)`: the function runs in a fork of a process that has imported the modules, and there
`subprocess.Popen` starts `python -m MODULE` as a fork too. Such a program has its own process id, descriptors,
environment, session, signals and exit status, and /proc shows its command line and its environment, after that of the
first process.

All processes of one run of the tests share the process of the same modules. Run as `python -m tests.warm DESCRIPTOR
MODULE ...` by this module alone.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import hashlib
import importlib
import inspect
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from runpy import run_module, run_path
from typing import Any

from verizero.pipeline.host import child
from verizero.pipeline.host.child import die_with
from verizero.pipeline.host.disk import locked

ROOT = Path(__file__).resolve().parents[1]
MARK = "VERIZERO_TEST_RUN"
"""Variable that names a folder: processes that have it belong to one test (`tests.processes.marked`)."""
ROOM = "VERIZERO_TEST_ROOM"
"""Variable of the first process whose value leaves room for the environment of a fork."""
ROOM_BYTES = 1 << 15
TRAINING = ("tests.forked_training",)
VLLM = (*TRAINING, "tests.stages.forked_vllm")
LIBRARIES = ("tests.forked_libraries",)
FLOWS = (*TRAINING, "tests.flows.forked_flows")
WATCHER = child.__file__
"""The one script that becomes a fork."""
FOLDER = "VERIZERO_TEST_MODELS"
"""Variable that names a folder of this run of the tests; tests/conftest.py sets it."""
LAUNCHERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("tests.launch.host", "tests.stages.vllm_rank", "torch.distributed.run", WATCHER), ("",)),
    "verizero.pipeline.cli": ("verizero.flows.",),
    **dict.fromkeys(("verizero.flows.serve", "prefect"), ("prefect.engine",)),
}
"""Programs that start others as forks too, and how the names of those others begin."""


class Warm:
    """A process that has imported `modules` and computes nothing itself; it ends with the last process that has one."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        self._log = (folder := folder_of(modules)) / "log"
        self._control = socket.socket(socket.AF_UNIX)
        with locked(folder, wait=True):
            try:
                self._control.connect(str(folder / "socket"))
            except (FileNotFoundError, ConnectionRefusedError):  # there is none, or it was killed
                (folder / "socket").unlink(missing_ok=True)
                with socket.socket(socket.AF_UNIX) as listener:
                    listener.bind(str(folder / "socket"))
                    listener.listen()
                    start(listener, modules, self._log)
                self._control.connect(str(folder / "socket"))

    def close(self) -> None:
        """Close this process's connection."""
        self._control.close()

    def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Return what the function returns in a fork, with this process's environment and folder; or raise its error.

        Function, arguments and result are pickled.
        """
        ours, theirs = Pipe()
        socket.send_fds(self._control, [b"."], [theirs.fileno()])
        theirs.close()
        with ours:
            ours.send((function, arguments, named, dict(os.environ), str(Path.cwd())))
            try:
                result, error = ours.recv()
            except EOFError as exc:
                exc.add_note(self._log.read_text(errors="replace")[-3000:])
                raise
        if error is not None:
            raise error
        return result


def folder_of(modules: Sequence[str]) -> Path:
    """Return the folder of the process that has those modules imported; it holds a lock and a socket."""
    # Triton reads this variable while it is imported, so there is a process with it and one without.
    key = repr((*modules, os.environ.get("TRITON_INTERPRET")))
    return Path(os.environ[FOLDER]) / f"warm-{hashlib.sha256(key.encode()).hexdigest()[:8]}"


def start(listener: socket.socket, modules: tuple[str, ...], log: Path) -> None:
    """Start the process that answers at the socket and writes into `log`.

    It outlives this process, whose own streams somebody may read to their end.
    """
    plain = {name: value for name, value in os.environ.items() if name != MARK}
    with log.open("ab") as written:
        subprocess.Popen(
            [sys.executable, "-m", "tests.warm", str(listener.fileno()), *modules, " " * ROOM_BYTES],
            cwd=ROOT,
            # a thread would be missing in every fork: those of a pool, and that of the allocator of pyarrow
            env={
                **plain,
                "OMP_NUM_THREADS": "1",
                "JE_ARROW_MALLOC_CONF": "background_thread:false",
                ROOM: " " * ROOM_BYTES,
            },
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            pass_fds=[listener.fileno()],
            start_new_session=True,  # Ctrl-C ends the tests, and then their ends of the connections end it
        )


@functools.cache
def warm(modules: tuple[str, ...] = TRAINING) -> Warm:
    """Return the Warm of those modules, started at the first call of all processes."""
    return Warm(modules)


class Forked(subprocess.Popen[Any]):
    """A Popen that starts `python -m MODULE WORDS`, or WATCHER, as a fork of this process, and all else as usual.

    A program that is given descriptors (`pass_fds`) is started as usual too: a fork closes them all.
    Its children start programs as usual, but for LAUNCHERS: by then they may have threads, and a fork has the calling
    thread alone.
    """

    forked: tuple[str, ...] = ("",)
    """Beginnings of names: a program with such a name is started as a fork."""

    def _execute_child(self, *given: Any) -> None:
        plain = super()._execute_child  # type: ignore[misc]
        how = inspect.signature(plain).bind(*given).arguments
        words = list(how["args"]) if isinstance(how["args"], list | tuple) else []
        program = [str(w) for w in words[1:] if w not in ("-u", "-P", "-S")]
        module = program[program[0] == "-m" :] if program[:1] in (["-m"], [WATCHER]) else []
        is_ours = bool(module) and words[0] == sys.executable and module[0].startswith(Forked.forked)
        if not is_ours or how["pass_fds"]:
            plain(*given)
            return
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self.pid = os.fork()
        if self.pid == 0:
            # what the caller's context holds, such as settings or a task of its event loop, is not for its programs
            Context().run(exit_after, lambda: become(how, module, "-u" in words))
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(how[name] for name in pipes))  # type: ignore[attr-defined]


PLAIN = subprocess.Popen


def become(how: Mapping[str, Any], program: list[str], unbuffered: bool) -> None:
    """Turn this fork into the started program, a module or WATCHER and its words, and run it."""
    subprocess.Popen = Forked if program[0] in LAUNCHERS else PLAIN  # type: ignore[misc]
    Forked.forked = LAUNCHERS.get(program[0], ())
    forget_signals()
    show(places()[0], how["args"])
    for number, end in enumerate((how["p2cread"], how["c2pwrite"], how["errwrite"])):
        if end not in (-1, number):
            os.dup2(end, number)
    discard_descriptors()
    if how["cwd"] is not None:
        os.chdir(how["cwd"])
    if how["start_new_session"]:
        os.setsid()
    if how["env"] is not None:
        be_in(how["env"])
    if how["preexec_fn"] is not None:
        how["preexec_fn"]()
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # type: ignore[assignment]
    unbuffered = unbuffered or "PYTHONUNBUFFERED" in os.environ
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=unbuffered, write_through=unbuffered)  # type: ignore[union-attr]
    sys.path[0], sys.argv = os.getcwd(), program
    if program[0] == WATCHER:
        run_path(WATCHER, run_name="__main__")
    else:
        run_module(program[0], run_name="__main__", alter_sys=True)


def discard_descriptors() -> None:
    """Let every descriptor but the three streams name the null device.

    They stay open: a socket or a file that this fork inherited as an object closes its number when it is collected, and
    by then that number would be another file's.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/proc/self/fd")):
        # The last one is that of the listing, which is closed by now.
        if number > 2 and number != null:
            os.dup2(null, number, inheritable=False)


def forget_signals() -> None:
    """Take back the handlers of signals, as a program does that is started."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def be_in(environment: Mapping[str, str]) -> None:
    """Take over the environment."""
    os.environ.clear()
    os.environ.update(environment)
    show(places()[1], ["", *(f"{name}={value}" for name, value in environment.items())])
    if "prefect.context" in sys.modules:  # it has read the environment while it was imported
        sys.modules["prefect.context"].refresh_global_settings_context()
        sys.modules["prefect.logging.configuration"].setup_logging(incremental=False)


@functools.cache
def places() -> tuple[tuple[int, int], tuple[int, int]]:
    """Return address and size of this process's command line, and of the value of ROOM, where /proc reads them."""
    words, words_end, variables = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:48])
    before, name, rest = Path("/proc/self/environ").read_bytes().partition(f"{ROOM}=".encode())
    return (words, words_end - words), (variables + len(before + name), len(rest.partition(b"\0")[0]))


def show(place: tuple[int, int], texts: Sequence[Any]) -> None:
    """Write the texts where /proc reads them, each with a NUL behind it; what has no room there is left out."""
    address, size = place
    written = b"".join(os.fsencode(text) + b"\0" for text in texts)[: size - 1]
    ctypes.memmove(address, written.ljust(size, b"\0"), size)


def exit_after(work: Callable[[], None]) -> None:
    """Do the work and end this process as an interpreter ends: status, exit handlers, threads, flushed streams."""
    # What the process has that was forked, such as temporary folders, is not for its forks to remove.
    for inherited in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        inherited.atexit = False
    status = 1
    try:
        try:
            work()
            status = 0
        except SystemExit as exc:
            status = exc.code if isinstance(exc.code, int) else 0 if exc.code is None else 1
            if isinstance(exc.code, str):
                print(exc.code, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        leave(status)


def leave(status: int) -> None:
    """End this process without what it would undo of the imports, half a second of a core.

    Libraries in C++ remove at their exit what they have in shared memory, so with any of that it ends in full.
    """
    if "/dev/shm/" in Path("/proc/self/maps").read_text():
        # By PyDLL, which keeps the interpreter's lock: some of them drop Python objects there.
        ctypes.PyDLL(None).exit(status)
    ctypes.CDLL(None).fflush(None)
    os._exit(status)


def answer(connection: Connection) -> None:
    """Call the function that comes in, and send back (result, None) or (None, error)."""
    function, arguments, named, environment, folder = connection.recv()
    be_in(environment)
    os.chdir(folder)
    subprocess.Popen = Forked  # type: ignore[misc]
    try:
        outcome: tuple[Any, BaseException | None] = (function(*arguments, **named), None)
        pickle.dumps(outcome)
    except BaseException as exc:
        exc.add_note(traceback.format_exc())
        outcome = (None, exc)
    connection.send(outcome)


def wait_for_no_disk() -> None:
    """Let `os.fsync` return at once in this process and its forks.

    It takes ten milliseconds, a hundred times in a tiny run, and matters after a power cut alone: what a killed process
    has written is there for the next.
    """
    os.fsync = lambda handle: None


def main(descriptor: int, modules: list[str]) -> None:
    """Import the modules, then fork for each call that comes in, until the last connection closes."""
    gc.disable()
    wait_for_no_disk()
    places()
    for module in modules:
        importlib.import_module(module)
    # Collections in forks pass over what was imported: vLLM's close alone asks for eight, a second of a core each.
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 20)  # as in the processes of pytest: tests/conftest.py
    if (torch := sys.modules.get("torch")) is not None:
        # A fork replaces torch's pool of threads at its first use. Of several threads that use it first, such as those
        # that load weights in another number type, one may find no pool and raise an error.
        os.register_at_fork(after_in_child=lambda: torch.set_num_threads(torch.get_num_threads()))
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"a fork would lack {len(threads) - 1} threads that {modules} started"
    listener = socket.socket(fileno=descriptor)
    controls = [listener.accept()[0]]
    while controls or not is_over(listener, modules):
        for ready in select.select([listener, *controls], [], [])[0]:
            if ready is listener:
                controls.append(listener.accept()[0])
                continue
            message, descriptors, _, _ = socket.recv_fds(ready, 1, 1)
            if not message:
                ready.close()
                controls.remove(ready)
                continue
            if os.fork() == 0:
                die_with(os.getppid())
                for end in (listener, *controls):
                    end.close()
                exit_after(lambda: answer(Connection(descriptors[0])))  # noqa: B023
            os.close(descriptors[0])
        reap()


def is_over(listener: socket.socket, modules: list[str]) -> bool:
    """True if nobody wants to connect; from then on nobody can. Connections are made under the same lock."""
    if not folder_of(modules).exists():  # the run of the tests has ended
        return True
    with locked(folder_of(modules), wait=True):
        if select.select([listener], [], [], 0)[0]:
            return False
        listener.close()
        return True


def reap() -> None:
    """Forget the forks that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:-1])
