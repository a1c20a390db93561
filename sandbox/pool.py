"""A pool of started workers: made when first needed, replaced when they die, shared by threads."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from verizero.pipeline.errors import IsolationError, fault_in_log
from verizero.sandbox import keepers, process, suites, toolchains
from verizero.sandbox.isolation import WALLS, Isolation, examine, explain
from verizero.sandbox.process import Worker, WorkerDied, order
from verizero.sandbox.results import Limits
from verizero.sandbox.toolchains import resolve
from verizero.sandbox.worker import codec, frames

T = TypeVar("T")
CHECK_EVERY = 64
"""A worker is checked after this many processes, whatever their results."""
_PAUSES_S = (0.05, 0.2, 0.5, 0.5)
"""Seconds between two workers on which a run is tried, should it or its worker be killed, or not start."""
_OFF = "switched off"
_IS_CLOSED = "the sandbox pool is closed; make a new Pool"
_PER_CORE = 2
"""Workers per core: a run often waits between caller, worker and child, and another can use the core."""
_CHECK_LIMITS = Limits()
_SHOW = "import os, sys\ndef show(text):\n    print(text[::-1], os.listdir('.'))\n    print(text, file=sys.stderr)\n"
_PROGRAMS = {
    frames.STDIN: f"{_SHOW}show(sys.stdin.read())",
    frames.FUNCTION: f"{_SHOW}def f(text):\n    show(text)\n    return [text, len(text)]",
}
_SUITE_PROGRAM = b"def f(text): return text[::-1]"


class Pool(contextlib.AbstractContextManager["Pool"]):
    """Workers behind walls.

    `workers`: how many programs run at one time, by default two per usable core. `min_level`: the isolation level below
    which the pool refuses to start. `walls`: the walls to put up, by default all; tests leave some out, and so may a
    machine that has trouble with one. `tools`: folders whose programs may be executed, for languages other than Python;
    by default none. `packages`: installed distributions that programs may import, with what they require, besides the
    standard library.
    """

    def __init__(
        self,
        workers: int | None = None,
        min_level: int = 2,
        walls: Iterable[str] = WALLS,
        tools: Iterable[str] = (),
        packages: Iterable[str] = (),
    ) -> None:
        """Raises: ValueError naming a wrong setting; ConfigError for a package that is not installed."""
        self.size = _PER_CORE * len(os.sched_getaffinity(0)) if workers is None else workers
        if self.size < 1:
            raise ValueError(f"Pool.workers must be at least 1, got {self.size}")
        if not 0 <= min_level <= 3:
            raise ValueError(f"Pool.min_level must be 0 to 3, got {min_level}")
        unknown = set(walls) - set(WALLS)
        if unknown:
            raise ValueError(f"Pool.walls: unknown {sorted(unknown)}; known: {', '.join(WALLS)}")
        self.min_level = min_level
        self.tools, self.packages = tuple(tools), tuple(packages)
        self._installed = resolve(self.packages)
        self._walls = frozenset(walls)
        self._refused: dict[str, str] = {w: _OFF for w in WALLS if w not in self._walls}
        self._interpreter: str | None = None
        self._isolation: Isolation | None = None
        self._reset()
        _POOLS.add(self)

    def _reset(self) -> None:
        self._free = threading.Semaphore(self.size)
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()
        self._lock = threading.Lock()
        self._start_lock = threading.Lock()
        self._closed = False
        self._num_interrupts = 0
        self._fault = ""
        """Why the last start of a worker failed; empty if it did not."""
        self._keeper: keepers.Keeper | None = None
        self._keeper_lock = threading.Lock()
        self._with_tools: Pool | None = None

    @property
    def isolation(self) -> Isolation:
        """The walls that hold, proved by a first worker. Raises: IsolationError below `min_level`."""
        if self._isolation is None:
            self.use(lambda worker: None)
        assert self._isolation is not None
        return self._isolation

    def require_workers(self) -> Isolation:
        """Return the walls that hold; start a worker where the last start failed. Raises: IsolationError."""
        if self._closed:
            raise IsolationError(_IS_CLOSED)
        if (other := self._with_tools) is not None:
            other.require_workers()
        if self._fault:
            try:
                self._put_back(self._start())
            except WorkerDied as exc:
                raise IsolationError(f"the sandbox cannot start a worker: {exc}") from exc
        return self.isolation

    def use(self, act: Callable[[Worker], T]) -> T:
        """Return `act(worker)`, with a worker that nobody else uses. If it dies, `act` is repeated with a new one.

        Raises: IsolationError; WorkerDied if several workers in a row died, or at an `interrupt`.
        """
        num_interrupts = self._num_interrupts
        with self._free:
            for attempt, pause in enumerate((*_PAUSES_S, None), 1):
                try:
                    with self._worker_for_use(fresh=attempt > 1) as worker:
                        if self._num_interrupts > num_interrupts:
                            raise WorkerDied("the run was interrupted")
                        return act(worker)
                except WorkerDied:
                    if pause is None or self._closed or self._num_interrupts > num_interrupts:
                        raise
                    time.sleep(pause)
        raise AssertionError("unreachable")

    def interrupt(self) -> None:
        """End all runs in progress: `use` raises WorkerDied in their threads. The pool continues with new workers."""
        with self._lock:
            self._num_interrupts += 1
            busy = self._all - set(self._idle)
        for worker in busy:
            worker.process.kill()
        if (other := self._with_tools) is not None:
            other.interrupt()

    def with_tools(self) -> Pool:
        """Return this pool if its programs may run compilers and a shell; else one that only differs in that.

        That is made when first needed, and closed with this one.
        """
        with self._lock:
            if self._closed:
                raise IsolationError(_IS_CLOSED)
            if not self.tools and self._with_tools is None:
                walls = [wall for wall in WALLS if self._refused.get(wall) != _OFF]
                self._with_tools = Pool(
                    self.size, self.min_level, walls, tools=toolchains.folders(), packages=self.packages
                )
            return self._with_tools or self

    def keeper(self) -> keepers.Keeper:
        """Return the keeper of this pool's sessions. It is started when first needed, and again if it has died.

        Raises: IsolationError; WorkerDied.
        """
        assert self.isolation is not None
        with self._keeper_lock:
            if self._closed:
                raise IsolationError(_IS_CLOSED)
            if self._keeper is not None and not self._keeper.is_alive:
                self._keeper.close()
                self._keeper = None
            if self._keeper is None:
                assert self._interpreter is not None
                self._keeper = keepers.start(
                    self._interpreter, self._walls, next(_NUMBERS), self.tools, self._installed.paths, self.min_level,
                )  # fmt: skip
            return self._keeper

    @property
    def modules(self) -> frozenset[str]:
        """The names that programs may import besides the standard library's."""
        return self._installed.modules

    @contextlib.contextmanager
    def _worker_for_use(self, fresh: bool) -> Iterator[Worker]:
        with self._lock:
            if self._closed:
                raise IsolationError(_IS_CLOSED)
            worker = self._idle.pop() if self._idle else None
        if worker is not None and fresh and worker.runs:  # what has harmed one worker may have harmed all
            self._discard(worker)
            worker = None
        if worker is None:
            worker = self._start()
        try:
            yield worker
        except BaseException:  # the worker may still be busy with the run; a new one is cheap
            self._discard(worker)
            raise
        if worker.runs >= CHECK_EVERY:
            check(worker, frames.STDIN, frames.FUNCTION, frames.SUITE)
        self._put_back(worker)

    def _put_back(self, worker: Worker) -> None:
        with self._lock:
            is_kept = worker.is_fit and not self._closed
            if is_kept:
                self._idle.append(worker)
        if not is_kept:
            self._discard(worker)

    def _discard(self, worker: Worker) -> None:
        with self._lock:
            self._all.discard(worker)
        worker.process.kill()
        worker.close()

    def _start(self) -> Worker:
        """Start a worker at `min_level` or above. Raises: WorkerDied; IsolationError, also when the pool was closed."""
        try:
            with self._start_lock if self._isolation is None else contextlib.nullcontext():
                worker = self._start_like_the_first() if self._isolation else self._start_the_first()
        except (WorkerDied, IsolationError) as exc:
            self._fault = str(exc) or type(exc).__name__
            raise
        self._fault, worker.runs = "", 0
        with self._lock:
            is_closed = self._closed
            if not is_closed:
                self._all.add(worker)
        if is_closed:
            self._discard(worker)
            raise IsolationError(_IS_CLOSED)
        return worker

    def _start_the_first(self) -> Worker:
        """Start a worker; the walls that the kernel refuses are left out from then on. Raises: IsolationError."""
        failures: list[str] = []
        interpreters = process.interpreters()
        for interpreter in interpreters[:1] if self.packages else interpreters:  # the first has the packages
            # The first that starts is kept for good, so one that was killed from outside is tried again.
            for pause in (*_PAUSES_S, None):
                try:
                    worker, isolation = self._start_with_any_walls(interpreter)
                except WorkerDied as exc:
                    failures.append(f"{interpreter}: {exc}")
                    if pause is not None and not self._closed:
                        time.sleep(pause)
                    continue
                if isolation.level < self.min_level:
                    worker.close()
                    raise IsolationError(explain(isolation, self.min_level))
                self._interpreter, self._isolation = interpreter, isolation
                return worker
        fault = fault_in_log("\n".join(failures))
        raise IsolationError("the sandbox starts no worker: " + (fault or "; ".join(failures)))

    def _start_with_any_walls(self, interpreter: str) -> tuple[Worker, Isolation]:
        while True:
            try:
                worker = process.start(interpreter, self._walls, next(_NUMBERS), self.tools, self._installed.paths)
                return worker, examine(worker, self._refused)
            except process.WallRefused as exc:
                self._walls -= {exc.wall}
                self._refused[exc.wall] = str(exc)

    def _start_like_the_first(self) -> Worker:
        """Start a worker; one with fewer walls than the pool's first has failed. Raises: WorkerDied."""
        assert self._interpreter is not None
        assert self._isolation is not None
        try:
            worker = process.start(self._interpreter, self._walls, next(_NUMBERS), self.tools, self._installed.paths)
        except process.WallRefused as exc:
            raise WorkerDied(str(exc) or type(exc).__name__) from exc
        isolation = examine(worker, self._refused)
        if isolation.level < self._isolation.level:
            worker.close()
            raise WorkerDied(f"a new worker has level {isolation.level}, and the first had {self._isolation.level}")
        return worker

    def close(self) -> None:
        """End all workers. A run in progress ends with WorkerDied."""
        with self._lock:
            self._closed = True
            workers, self._idle = list(self._all), []
            self._all.clear()
            with_tools, self._with_tools = self._with_tools, None
        if with_tools is not None:
            with_tools.close()
        for worker in workers:
            worker.process.kill()
            worker.close()
        with self._keeper_lock:
            keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.close()

    def forget(self) -> None:
        """Forget all workers without ending them, in a fork whose parent still uses them."""
        for worker in self._all:
            worker.close_our_ends()
        if self._keeper is not None:
            self._keeper.worker.close_our_ends()
        self._reset()

    def __exit__(self, *_: object) -> None:
        self.close()


def confirm(worker: Worker, was_new: bool, kind: int) -> None:
    """Check a worker after results of this `kind` that no right output proves; a worker that fails is not used again.

    Results of a worker that `was_new` count in either case: only their own program can have harmed it.
    Raises: WorkerDied if an earlier program may have harmed the worker; another worker must repeat the run.
    """
    if not check(worker, kind) and not was_new:
        raise WorkerDied(f"worker {worker.process.pid} runs a known program wrongly")


def check(worker: Worker, *kinds: int) -> bool:
    """Run a known program of each kind. Return True if all results are right, else mark the worker unfit."""
    try:
        worker.is_fit = all(_is_right(worker, kind) for kind in kinds)
    except WorkerDied:
        worker.is_fit = False
    worker.runs = 0
    return worker.is_fit


def _is_right(worker: Worker, kind: int) -> bool:
    """True if a run gives exactly the known output, errors and value. Raises: WorkerDied."""
    text = secrets.token_hex(8 + secrets.randbelow(24))
    if kind == frames.SUITE:
        return _runs_suite_rightly(worker, text)
    out, err, item, value = f"{text[::-1]} []\n".encode(), f"{text}\n".encode(), text.encode(), b""
    if kind == frames.FUNCTION:
        item, value = codec.encode({"fn": "f", "args": [text], "kwargs": {}}), codec.encode([text, len(text)])
    result = worker.execute(order(kind, _CHECK_LIMITS), frames.pack_payload(_PROGRAMS[kind].encode(), [item]))
    record = frames.Record(0, frames.FINISHED, len(out), len(err), value)
    end = (result.exit.status, result.exit.why)
    return (end, result.out, result.err, result.records) == ((0, frames.ENDED), out, err, [record])


def _runs_suite_rightly(worker: Worker, text: str) -> bool:
    """True if a right test passes and a wrong one fails. Raises: WorkerDied."""
    tests = [{"source": f"assert f({text!r}) == {wanted!r}", "names": ["f"]} for wanted in (text[::-1], text)]
    payload = frames.pack_suite(_SUITE_PROGRAM, [suites.case(test).data for test in tests])
    result = worker.execute(order(frames.SUITE, _CHECK_LIMITS, len(tests)), payload)
    if (result.exit.status, result.exit.why, result.out, result.err) != (0, frames.ENDED, b"..", b""):
        return False
    return [suites.status_of(record) for record in result.records] == ["passed", "wrong_answer"]


_default_lock = threading.Lock()
_default: Pool | None = None


def default_pool() -> Pool:
    """Return the pool that calls use by default. It is made on first use and closed at exit."""
    global _default
    with _default_lock:
        if _default is None:
            _default = Pool()
        return _default


def configure(
    workers: int | None = None, min_level: int = 2, walls: Iterable[str] = WALLS, packages: Iterable[str] = ()
) -> Pool:
    """Return a new default pool with these settings, and close the former one. Raises: ValueError; ConfigError."""
    global _default
    new = Pool(workers, min_level, walls, packages=packages)
    with _default_lock:
        old, _default = _default, new
    if old is not None:
        old.close()
    return new


_NUMBERS = itertools.count()
"""Numbers of this process's workers: each number is a uid, so that the kernel counts each worker's processes."""
_POOLS: weakref.WeakSet[Pool] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in list(_POOLS):
        pool.forget()


def _at_exit() -> None:
    for pool in list(_POOLS):
        pool.close()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
