"""One part: a generator of rows that runs in a process of its own, with a time limit, and becomes one line of JSON."""

import contextlib
import importlib.util
import json
import os
import re
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_parts.machine import Machine
from verizero.pipeline.host.child import die_with

Row = dict[str, Any]
"""One measurement. A row with "holds" is a check, which fails its part if it is False."""
Work = Callable[[Machine], Iterator[Row]]
LOOK_S = 0.2
"""Seconds between two looks at whether a child has ended."""
OF_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Variables of a group of ranks, as a job of Slurm may set them. A part is one process; TRL would wait for more."""


@dataclass(frozen=True)
class Part:
    """A part of a command."""

    name: str
    shows: str
    expected: str
    """The figures to expect, with where they are from. None of them was measured with this project."""
    limit_s: float
    work: Work
    needs: tuple[str, ...] = ()
    """Packages without which the part is skipped."""


def run(part: Part, machine: Machine, command: str, left_s: float) -> Row:
    """Run the part for at most its limit, and `left_s`; return its line."""
    line: Row = {"command": command, "part": part.name, "dry": machine.dry, "expected": part.expected}
    missing = [name for name in part.needs if importlib.util.find_spec(name) is None]
    if missing:
        return {**line, "status": "skipped", "why": f"not installed: {', '.join(missing)}", "rows": []}
    limit = min(part.limit_s, left_s)
    if limit <= 0:
        return {**line, "status": "skipped", "why": "the time of the whole command was spent", "rows": []}
    begin = time.monotonic()
    rows, end = in_child(lambda: part.work(machine), limit, machine.out / "logs" / log_name(part.name))
    line |= {"seconds": round(time.monotonic() - begin, 1), "limit_s": round(limit, 1), "rows": rows}
    failed = [row["check"] for row in rows if row.get("holds") is False]
    if end is not None:
        return {**line, "status": "out of time" if end == "out of time" else "error", "why": end}
    if failed:
        return {**line, "status": "failed", "why": f"not as expected: {'; '.join(failed)}"}
    return {**line, "status": "done"}


def log_name(name: str) -> str:
    """Return the name of a part's log, of characters that every way of copying files takes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name) + ".log"


def in_child(work: Callable[[], Iterator[Row]], limit_s: float, log: Path) -> tuple[list[Row], str | None]:
    """Collect the rows of `work` in a forked process; return them and the reason of its end (None: it is complete).

    A process of its own has a fresh GPU context and environment, and can be ended in the middle of a kernel. It is
    forked, so that libraries are loaded once: nothing may have used the GPU before. What it prints goes to `log`.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    read, write = os.pipe()
    sys.stdout.flush()
    parent, child = os.getpid(), os.fork()
    if child == 0:
        os.close(read)
        die_with(parent)  # a part's own child is in a group of its own, which `_end` of the part does not reach
        _be_child(work, write, log)
    os.close(write)
    deadline, data, end = time.monotonic() + limit_s, b"", "out of time"
    while (left := deadline - time.monotonic()) > 0:
        if select.select([read], [], [], min(LOOK_S, left))[0]:
            piece = os.read(read, 1 << 16)
            data += piece
            if piece:
                continue
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            end = _why(os.waitstatus_to_exitcode(status))
            break
    if end == "out of time":
        _end(child)
    while select.select([read], [], [], 0)[0] and (piece := os.read(read, 1 << 16)):
        data += piece
    os.close(read)
    rows = [json.loads(text) for text in data.decode().splitlines() if text.endswith("}")]
    errors = [row["error"] for row in rows if "error" in row]
    return [row for row in rows if "error" not in row], errors[0] if errors else end or None


def _end(child: int) -> None:
    """End the child with the processes that it started, and wait for it."""
    with contextlib.suppress(ProcessLookupError):  # it ended in this moment
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _why(status: int) -> str:
    return "" if status == 0 else f"its process ended with {status}"


def _be_child(work: Callable[[], Iterator[Row]], write: int, log: Path) -> None:
    """Run the work, write its rows, and end this process."""
    os.setpgid(0, 0)
    for name in OF_RANKS:
        os.environ.pop(name, None)
    sys.stdout = sys.stderr = file = log.open("w", buffering=1)
    os.dup2(file.fileno(), 1)  # for what libraries print past Python
    os.dup2(file.fileno(), 2)
    status = 1
    try:
        for row in work():
            os.write(write, json.dumps(row).encode() + b"\n")
        status = 0
    except BaseException as exc:
        traceback.print_exc()
        error = {"error": f"{type(exc).__name__}: {exc}"[:2000]}
        os.write(write, json.dumps(error).encode() + b"\n")
    finally:
        file.flush()
        os._exit(status)
