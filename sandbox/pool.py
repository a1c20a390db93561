"""A pool of warm workers: started when first needed, replaced when they die, shared by threads and event loops."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from pipeline.errors import IsolationError
from sandbox import process
from sandbox.isolation import WALLS, Isolation, examine, explain
from sandbox.process import Worker, WorkerDied

T = TypeVar("T")
_ATTEMPTS = 4
_IS_CLOSED = "the sandbox pool is closed; make a new Pool"
_PER_CORE = 2
"""A run is handed on from judge to worker to child and back: while one waits for its turn, another has the core."""


class Pool:
    """Workers behind walls.

    `workers`: how many programs run at one time, default two per usable core. `min_level`: refuse to start below it.
    `walls`: those to put up, for tests and for machines where one does harm; default all. `tools`: folders whose
    programs may be executed (for other languages than Python); default none.
    """

    def __init__(
        self,
        workers: int | None = None,
        min_level: int = 2,
        walls: Iterable[str] = WALLS,
        tools: Iterable[str] = (),
    ) -> None:
        self.size = _PER_CORE * len(os.sched_getaffinity(0)) if workers is None else workers
        if self.size < 1:
            raise ValueError(f"Pool.workers must be at least 1, got {self.size}")
        if not 0 <= min_level <= 3:
            raise ValueError(f"Pool.min_level must be 0 to 3, got {min_level}")
        unknown = set(walls) - set(WALLS)
        if unknown:
            raise ValueError(f"Pool.walls: unknown {sorted(unknown)}; known: {', '.join(WALLS)}")
        self.min_level = min_level
        self.tools = tuple(tools)
        self._walls = frozenset(walls)
        self._refused: dict[str, str] = {w: "switched off" for w in WALLS if w not in self._walls}
        self._interpreter: str | None = None
        self._isolation: Isolation | None = None
        self._reset()
        _POOLS.add(self)

    def _reset(self) -> None:
        self._free = threading.Semaphore(self.size)
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._closed = False

    @property
    def isolation(self) -> Isolation:
        """What stands, proved by trying; starts a worker if none has been.

        Raises: IsolationError below `min_level`.
        """
        if self._isolation is None:
            self.use(lambda worker: None)
        assert self._isolation is not None
        return self._isolation

    def use(self, act: Callable[[Worker], T]) -> T:
        """`act(worker)`, with a worker that nobody else holds; done again with another if that one dies meanwhile.

        Raises: IsolationError; WorkerDied when several in a row died.
        """
        with self._free:
            for attempt in itertools.count(1):
                try:
                    with self._holding() as worker:
                        return act(worker)
                except WorkerDied:
                    if attempt == _ATTEMPTS or self._closed:
                        raise
        raise AssertionError("unreachable")

    @contextlib.contextmanager
    def _holding(self) -> Iterator[Worker]:
        with self._lock:
            if self._closed:
                raise IsolationError(_IS_CLOSED)
            worker = self._idle.pop() if self._idle else None
        if worker is None:
            worker = self._start()
        try:
            yield worker
        except BaseException:  # whatever happened, the worker may still be busy with it: a fresh one is cheap
            self._discard(worker)
            raise
        self._put_back(worker)

    def _put_back(self, worker: Worker) -> None:
        with self._lock:
            keep = not self._closed
            if keep:
                self._idle.append(worker)
        if not keep:
            self._discard(worker)

    def _discard(self, worker: Worker) -> None:
        with self._lock:
            self._all.discard(worker)
        worker.process.kill()
        worker.close()

    def _start(self) -> Worker:
        """A new worker at `min_level` or above. Walls that the machine refuses are left out from then on.

        Raises: IsolationError; also when the pool was closed meanwhile.
        """
        with self._starting if self._isolation is None else contextlib.nullcontext():
            worker = self._start_with_walls()
        with self._lock:
            is_closed = self._closed
            if not is_closed:
                self._all.add(worker)
        if is_closed:
            self._discard(worker)
            raise IsolationError(_IS_CLOSED)
        return worker

    def _start_with_walls(self) -> Worker:
        complaints: list[str] = []
        for interpreter in [self._interpreter] if self._interpreter else process.interpreters():
            while True:
                try:
                    worker = process.start(interpreter, self._walls, next(_NUMBERS), self.tools)
                    isolation = examine(worker, self._refused)
                except process.WallRefused as exc:
                    self._walls -= {exc.wall}
                    self._refused[exc.wall] = str(exc)
                    continue
                except WorkerDied as exc:
                    complaints.append(f"{interpreter}: {exc}")
                    break
                if isolation.level < self.min_level:
                    worker.close()
                    raise IsolationError(explain(isolation, self.min_level))
                self._interpreter, self._isolation = interpreter, isolation
                return worker
        if self._interpreter:
            raise WorkerDied("; ".join(complaints))
        raise IsolationError("no interpreter can start a sandbox worker: " + "; ".join(complaints))

    def close(self) -> None:
        """End all workers. Runs in progress end with WorkerDied."""
        with self._lock:
            self._closed = True
            workers, self._idle = list(self._all), []
            self._all.clear()
        for worker in workers:
            worker.process.kill()
            worker.close()

    def forget(self) -> None:
        """In a forked child: let go of the parent's workers without ending them, and begin anew."""
        for worker in self._all:
            worker.let_go()
        self._reset()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_NUMBERS = itertools.count()
"""Of all workers of the process: from it comes a worker's uid, and the kernel's count per uid is of one worker."""
_POOLS: weakref.WeakSet[Pool] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in list(_POOLS):
        pool.forget()


def _at_exit() -> None:
    for pool in list(_POOLS):
        pool.close()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
