"""Notice that other programs take the cores of this machine from a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

from verizero.pipeline.host.child import family_of

EVERY_S = 60.0
"""Seconds over which the use of the cores is compared."""
OTHERS, FULL = 0.25, 0.9
"""Shares of the cores: others use at least the first, and all together at least the second."""
PROC = Path("/proc")


class Used(NamedTuple):
    """CPU seconds on this process's cores until now, except for `idle`, in which nothing ran."""

    own: float
    """CPU seconds of this process and all that it started. In a group of ranks: of the ranks on this machine."""
    all: float
    idle: float


@contextmanager
def watch_cores(say: Callable[[str], None], every_s: float = EVERY_S) -> Iterator[None]:
    """In the block, let a thread say once that others take the cores. Without Linux's /proc it says nothing."""
    ended = Event()

    def watch() -> None:
        with suppress(OSError, ValueError, IndexError):  # no /proc, or nobody reads what the run shows
            before = used()
            while not ended.wait(every_s):
                now = used()
                if text := others_take(before, now):
                    say(text)
                    return
                before = now

    thread = Thread(target=watch, name="cores", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def others_take(before: Used, now: Used) -> str:
    """Return a sentence if between two moments others took cores that the run could have used, else ""."""
    own, together = now.own - before.own, now.all - before.all
    whole = together + now.idle - before.idle
    others = together - own
    if whole <= 0 or others < OTHERS * whole or together < FULL * whole:
        return ""
    cores = len(os.sched_getaffinity(0))
    theirs = others / whole * cores
    return f"other programs use {theirs:.1f} of the {cores} cores, so this run is slower than it would be alone"


def used() -> Used:
    """Return what the cores have done until now. Raises: OSError or ValueError where /proc does not say it."""
    tick = os.sysconf("SC_CLK_TCK")
    mine = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    rows = [line.split() for line in (PROC / "stat").read_text().splitlines()]
    # user, nice, system, idle, iowait, irq, softirq, steal
    times = [[int(text) / tick for text in row[1:9]] for row in rows if row[0] in mine]
    idle = sum(row[3] + row[4] for row in times)
    return Used(_own_seconds(tick), sum(map(sum, times)) - idle, idle)


def _own_seconds(tick: int) -> float:
    # The launcher's other ranks are no children of this one, but of its parent.
    root = os.getppid() if "WORLD_SIZE" in os.environ else os.getpid()
    # utime, stime, and those of children that have ended
    return sum(sum(map(int, stat[11:15])) / tick for stat in family_of(root).values())
