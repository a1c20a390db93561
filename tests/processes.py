"""Processes of this machine as /proc shows them, and waiting for what they do."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 240.0
"""Seconds to wait for anything that comes at all; a loaded machine is slow."""


def until(look: Callable[[], T], what: str, patience_s: float = PATIENCE_S, every_s: float = 0.1) -> T:
    """Return the result of `look`, called every `every_s`, once it is true.

    Raises: AssertionError naming `what` if it never is.
    """
    deadline = time.monotonic() + patience_s
    while not (result := look()):
        assert time.monotonic() < deadline, f"{what} did not come within {patience_s:g} s"
        time.sleep(every_s)
    return result


def others() -> Iterator[tuple[int, str, str]]:
    """Yield id, command line and environment (NAME=value, each between NULs) of every process but this one."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words, environment = ((entry / name).read_bytes() for name in ("cmdline", "environ"))
            except OSError:
                continue  # it has ended
            command = words.rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
            yield int(entry.name), f"{command} ", f"\0{environment.decode(errors='replace')}"


def marked(variable: str) -> dict[int, str]:
    """Return command lines of the live processes that have `variable` (NAME=value) in their environment."""
    # a process that has ended and is not waited for yet has an empty environment
    return {process: words for process, words, environment in others() if f"\0{variable}\0" in environment}


def stats() -> dict[int, list[str]]:
    """Return the fields of /proc/PID/stat behind the name: state, parent, group, session and more."""
    fields = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields[int(stat.parent.name)] = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
    return fields


def descendants(pid: int) -> list[int]:
    """Return all processes below `pid`."""
    parents = {child: int(fields[1]) for child, fields in stats().items()}
    below, todo = [], [pid]
    while todo:
        parent = todo.pop()
        children = [p for p, of in parents.items() if of == parent]
        below += children
        todo += children
    return below


def family(process: int) -> set[int]:
    """Return the process and all that descend from it."""
    return {process, *descendants(process)}


def alive(processes: Iterable[int]) -> set[int]:
    """Return those of the processes that have not ended."""
    there = stats()
    return {p for p in processes if p in there and there[p][0] != "Z"}


def commands(processes: Iterable[int]) -> list[str]:
    """Return the command lines of those of the processes that have not ended."""
    wanted = alive(processes)
    return [words for process, words, _ in others() if process in wanted]
