"""Every error that the project raises on purpose.

    VerizeroError
    ├── ConfigError         a recipe or a command-line value is wrong; raised while loading
    │   ├── UnknownName     no plug-in of that name; says which are near
    │   └── Unsupported     the chosen backend lacks an ability; says which one has it
    ├── DataError           a row or a file of data is wrong
    ├── CheckpointError     a checkpoint is torn, tampered with or of another run
    ├── RunError            a run cannot start or continue (locked folder, full disk)
    │   ├── InUse           another process holds the folder
    │   └── NonFiniteError  a loss or gradient is not a number; the step was refused
    ├── EngineError         the rollout engine failed or confirmed another weight version
    ├── GradingError        a verifier failed: infrastructure, never a wrong answer
    ├── EnvironmentFailed   an environment, its process or its machine failed: infrastructure, never a wrong move
    ├── IsolationError      the sandbox cannot start at the level asked for
    └── SessionError        a stateful session was lost: infrastructure, never a wrong answer

A message names what was wrong, the value got, and the remedy.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class VerizeroError(Exception):
    """Base of all errors raised on purpose."""


class ConfigError(VerizeroError):
    """A recipe or command-line value is wrong."""


class UnknownName(ConfigError):
    """No plug-in has that name."""


class Unsupported(ConfigError):
    """The chosen backend lacks an ability; the message names one that has it."""


class DataError(VerizeroError):
    """A row or file of data is wrong."""


class CheckpointError(VerizeroError):
    """A checkpoint cannot be trusted."""


class RunError(VerizeroError):
    """A run cannot start or continue."""


class InUse(RunError):
    """Another process holds the folder."""


class NonFiniteError(RunError):
    """A loss or gradient is not finite; nothing was updated."""


class EngineError(VerizeroError):
    """The rollout engine failed."""


class GradingError(VerizeroError):
    """A verifier failed; the answer it looked at is neither right nor wrong."""


class EnvironmentFailed(VerizeroError):
    """An environment failed; the episode has no reward."""


class IsolationError(VerizeroError):
    """The sandbox cannot give the isolation asked for."""


class SessionError(VerizeroError):
    """A stateful session was lost, or its replay came out differently; nothing is known of what it would answer."""


@contextmanager
def boundary(error: type[VerizeroError], what: str) -> Iterator[None]:
    """Attribute any foreign exception that escapes the block to `error`; own errors pass unchanged."""
    try:
        yield
    except VerizeroError:
        raise
    except Exception as exc:
        raise error(f"{what}: {type(exc).__name__}: {exc}") from exc


def raised_at(exc: BaseException, file: str) -> str:
    """Return "file:line" of the innermost line of `file` that an exception went through; empty if of none."""
    frames = traceback.walk_tb(exc.__traceback__)
    return next((f"{file}:{line}" for frame, line in reversed(list(frames)) if frame.f_code.co_filename == file), "")


def raise_if_operator(exc: BaseException) -> None:
    """Raise the exception again if it is Ctrl-C: other threads than the main one get none, but from their own code."""
    if isinstance(exc, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise exc


def told(exc: BaseException) -> str:
    """Return an exception of code from outside in words, and the innermost line that is no library's and not ours."""
    try:
        words = f"{type(exc).__name__}: {exc}"
    except Exception:  # its own text raises
        words = type(exc).__name__
    ours = str(Path(__file__).parent)
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(exc.__traceback__)]
    outside = [f for f in files if not f.startswith(("<", ours)) and "/lib/python" not in f]
    place = raised_at(exc, outside[-1]) if outside else ""
    return words[: max(100, 290 - len(place))] + (f", at {place}" if place else "")
