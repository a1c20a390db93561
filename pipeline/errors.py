"""Every error that the project raises on purpose, in a tree whose root is `VerizeroError`.

A message names what was wrong, the value got, and the remedy. What the machine refuses (a full disk, a further
descriptor or thread), and a package of training that is not installed, may come from any library as any exception:
`machine_fault` knows it by its kind.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import resource
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DISK_FULL = "the disk is full"
AGAIN = "start the same command again; a run continues from its last whole checkpoint"
TRAINING = (
    "torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "tensorboard", "prefect", "sqlalchemy",
    "fastapi", "rich", "cloudpickle",
)  # fmt: skip
"""Modules that the core of the package does without, and its extra `train` brings."""
TRAIN_EXTRA = "pip install '.[train]'"
FAULTS: tuple[tuple[tuple[int, ...], str, str], ...] = (
    (
        (errno.EMFILE, errno.ENFILE),
        "",
        "too many files are open at once (`ulimit -n` is {files}); raise it to 4096 or more and " + AGAIN,
    ),
    (
        (errno.EAGAIN,),
        "can't start new thread",
        "no further process or thread may be started (`ulimit -u` is {processes}, and a container may have a lower "
        "limit); end other programs or raise the limit, and " + AGAIN,
    ),
    (
        (errno.EACCES, errno.EPERM, errno.EROFS),
        "readonly database|unable to open database file",
        "{words}; make it readable and writable for this user, or choose another folder",
    ),
    ((errno.EFBIG,), "", "{words}: a file may not grow so large here; raise `ulimit -f` and " + AGAIN),
    (
        (errno.ENOMEM,),
        "can't allocate memory",
        "memory is used up; end other programs, or make batches or the model smaller (`verizero plan` estimates them), "
        "and " + AGAIN,
    ),
    (
        (),
        rf"No module named '(?:{'|'.join(TRAINING)})'",
        f"{{words}}: models need more than the core; in Verizero's folder: {TRAIN_EXTRA}",
    ),
    # Last: torch's writer tells only where it stopped, not why, and other kinds may be in the same message.
    (
        (errno.ENOSPC, errno.EDQUOT),
        r"disk is full|unexpected pos \d+ vs|PytorchStreamWriter failed",
        f"{DISK_FULL}; free space and {AGAIN}",
    ),
)
"""Refusals of a machine, and what it lacks: the system's numbers, the words of libraries, and the remedy."""


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


class ResumeRefused(RunError):
    """The folder has a run, or none, against the command's `resume`; nothing in it was touched."""


class Collapsed(RunError):
    """RL is collapsing, and the guard stopped it."""


class Stopped(RunError):
    """A callback ended the run; its checkpoint is written."""


class GradersFailed(RunError):
    """Graders failed so often that nothing is trained."""


class NonFiniteError(RunError):
    """A loss or gradient is not finite; nothing was updated."""


class EngineError(VerizeroError):
    """The rollout engine failed."""


class GradingError(VerizeroError):
    """A verifier failed; the answer that it graded counts as neither right nor wrong."""


class EnvironmentFailed(VerizeroError):
    """An environment failed; the episode has no reward."""


class IsolationError(VerizeroError):
    """The sandbox cannot give the isolation asked for."""


class SessionError(VerizeroError):
    """A stateful session was lost, or its replay gave other results; its next answer is unknown."""


@contextmanager
def boundary(error: type[VerizeroError], what: str) -> Iterator[None]:
    """Raise any other exception of the block as `error`; errors of this project pass unchanged.

    A refusal of the machine (a full disk) says nothing about the input of the block, and is raised as RunError.
    """
    try:
        yield
    except VerizeroError:
        raise
    except Exception as exc:
        if fault := machine_fault(exc):
            raise RunError(fault) from exc
        raise error(f"{what}: {type(exc).__name__}: {exc}") from exc


def machine_fault(exc: BaseException) -> str:
    """Return what the machine refused, with the remedy, if an exception was raised for that reason; else empty."""
    for link in chain_of(exc):
        if isinstance(link, OSError) and link.errno is not None:
            places = [str(name) for name in (link.filename, link.filename2) if name is not None]
            text, number = f"{os.strerror(link.errno)}{f' ({places[-1]})' if places else ''}", link.errno
        else:
            text, number = "Cannot allocate memory" if isinstance(link, MemoryError) else str(link), None
        if fault := fault_in(text, number):
            return fault
    return ""


def require_training() -> None:
    """Raise ConfigError, with the extra to install, where a package that training needs is not installed."""
    missing = next((name for name in TRAINING if importlib.util.find_spec(name) is None), None)
    if missing is not None:
        raise ConfigError(fault_in(f"No module named {missing!r}"))


def fault_in(text: str, number: int | None = None) -> str:
    """Return what the machine refused, with the remedy, by the system's error number, or without one by a text."""
    for numbers, others, words in FAULTS:
        # Logs of others say EPERM's words of much else.
        texts = [*(os.strerror(n) for n in numbers if n != errno.EPERM), *filter(None, [others])]
        if number in numbers if number is not None else re.search("|".join(texts), text):
            limits = {"files": resource.RLIMIT_NOFILE, "processes": resource.RLIMIT_NPROC}
            shown = {name: _shown(resource.getrlimit(limit)[0]) for name, limit in limits.items()}
            return words.format(words=text, **shown)
    return ""


def fault_in_log(log: str) -> str:
    """Return what the machine refused, with the remedy, by the last line of a log that names such a refusal."""
    return next(filter(None, map(fault_in, reversed(log.splitlines()))), "")


def fault_now() -> str:
    """Return what the machine refuses now, with the remedy; empty if it gives a thread and descriptors.

    Some libraries hide such a refusal in other errors.
    """
    try:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
        for descriptor in os.pipe():
            os.close(descriptor)
    except (OSError, RuntimeError) as exc:
        return machine_fault(exc)
    return ""


def limit_fault(what: str, files: int, processes: int = 0) -> str:
    """Return a message if a limit of this process is lower than `what` needs; empty if none is."""
    limits = [("n", resource.RLIMIT_NOFILE, files)]
    limits += [("u", resource.RLIMIT_NPROC, processes)] if os.geteuid() else []  # root is not bound by it
    for flag, limit, least in limits:
        have = resource.getrlimit(limit)[0]
        if have != resource.RLIM_INFINITY and have < least:
            return (
                f"{what} needs `ulimit -{flag}` of {least} at least, and it is {have}; raise it, e.g. `ulimit -{flag} "
                "4096`, and start the same command again"
            )
    return ""


def chain_of(exc: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those that led to it, from the last to the first, those of groups too."""
    while exc is not None:
        yield exc
        for member in exc.exceptions if isinstance(exc, BaseExceptionGroup) else ():
            yield from chain_of(member)
        exc = exc.__cause__ or (None if exc.__suppress_context__ else exc.__context__)


def _shown(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


def raised_at(exc: BaseException, file: str) -> str:
    """Return "file:line" of the innermost line of `file` in an exception's traceback; empty if there is none."""
    frames = traceback.walk_tb(exc.__traceback__)
    return next((f"{file}:{line}" for frame, line in reversed(list(frames)) if frame.f_code.co_filename == file), "")


def raise_if_operator(exc: BaseException) -> None:
    """Raise the exception again if it is Ctrl-C, which reaches the main thread only."""
    # In any other thread a KeyboardInterrupt was raised by that thread's own code.
    if isinstance(exc, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise exc


def exception_text(exc: BaseException) -> str:
    """Return an exception's type and message, and the line of the user's code: "ValueError: no, at game.py:7"."""
    try:
        text = f"{type(exc).__name__}: {exc}"
    except Exception:  # its own text raises
        text = type(exc).__name__
    ours = str(Path(__file__).parent)
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(exc.__traceback__)]
    users = [f for f in files if not f.startswith(("<", ours)) and "/lib/python" not in f]
    line = raised_at(exc, users[-1]) if users else ""
    return text[: max(100, 290 - len(line))] + (f", at {line}" if line else "")
