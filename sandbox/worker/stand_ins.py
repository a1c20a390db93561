"""Parts of Python in place of those that the walls close: locks of `multiprocessing`, and `shutil` without rights."""

from __future__ import annotations

import errno
import functools
import sys
import threading
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_RECURSIVE = 0


class SemLock:
    """A semaphore, or a lock that its thread may acquire again, with the members of `_multiprocessing.SemLock`.

    The real ones are files in /dev/shm, which all programs of the machine would share. So pools of threads and queues
    work, and a program finds out only when it starts a process.
    """

    SEM_VALUE_MAX = 2**31 - 1

    def __init__(self, kind: int, value: int, maxvalue: int, name: str, unlink: bool) -> None:
        self.kind, self.maxvalue, self.name, self.handle = kind, maxvalue, None, id(self)
        self._value, self._owner, self._depth = value, 0, 0
        self._changed = threading.Condition(threading.Lock())

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Take one. False if there is none in time."""
        me = threading.get_ident()
        with self._changed:
            if not (self.kind == _RECURSIVE and self._depth and self._owner == me):
                if not self._changed.wait_for(lambda: self._value > 0, timeout if block else 0):
                    return False
                self._value -= 1
            self._owner, self._depth = me, self._depth + 1
        return True

    def release(self) -> None:
        """Give one back. Raises: AssertionError for another's lock; ValueError if all are there."""
        with self._changed:
            if self.kind == _RECURSIVE:
                if not self._is_mine():
                    raise AssertionError("attempt to release recursive lock not owned by thread")
            elif self._value >= self.maxvalue:
                raise ValueError("semaphore or lock released too many times")
            self._depth -= 1
            if self.kind != _RECURSIVE or not self._depth:
                self._value += 1
                self._changed.notify()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _count(self) -> int:
        return self._depth

    def _is_mine(self) -> bool:
        return self._depth > 0 and self._owner == threading.get_ident()

    def _get_value(self) -> int:
        return self._value

    def _is_zero(self) -> bool:
        return self._value == 0

    def _after_fork(self) -> None:
        """Do nothing: there is no fork."""


def install() -> None:
    """Let `multiprocessing` find locks of threads, and have `shutil` do without rights and times."""
    module = types.ModuleType("_multiprocessing")
    module.__dict__.update(SemLock=SemLock, sem_unlink=lambda name: None, flags={"HAVE_SEM_OPEN": 1})
    sys.modules[module.__name__] = module
    sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds `shutil` as Python does, and changes it once it is loaded. To import it here would make forks slower."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of `shutil`, None for any other module."""
        if name != "shutil":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name)
        if spec is not None and spec.loader is not None:
            load, loader = spec.loader.exec_module, spec.loader

            def exec_module(module: ModuleType) -> None:
                load(module)
                for function in ("copystat", "copymode"):
                    setattr(module, function, _without_rights(getattr(module, function)))

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _without_rights(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def copy(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except OSError as exc:
            if exc.errno != errno.EPERM:
                raise

    return copy
