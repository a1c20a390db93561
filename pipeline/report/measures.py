"""Measures of a step and of a run: tokens a second, the MFU of the update, peaks of memory, and who uses the cores."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

from verizero.pipeline.host.child import family_of

FILE = "peak_memory.json"
EVERY_S = 60.0
"""Seconds over which the use of the cores is compared."""
OTHERS, FULL = 0.25, 0.9
"""Shares of the cores: others use at least the first, and all together at least the second."""
PROC = Path("/proc")


def peak_mib() -> float:
    """Return the peak of this process's resident memory, in MiB.

    On Linux from its own address space: the system's other counter begins with what the parent held when it forked.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


def note_peak(folder: Path) -> None:
    """Write this process's peak into the run's folder, unless an earlier process of the run had a higher one."""
    mib = peak_mib()
    if mib > noted_peak(folder):
        (folder / FILE).write_text(json.dumps({"peak_memory_mib": mib}))


def noted_peak(folder: Path) -> float:
    """Return the highest peak in the run's folder, in MiB; 0 without one."""
    try:
        return float(json.loads((folder / FILE).read_text())["peak_memory_mib"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


class DevicePeaks:
    """Measures torch's peak of GPU memory in each phase since the last `take`. Phases may be nested."""

    def __init__(self, peak_bytes: Callable[[], float]) -> None:
        """`peak_bytes` returns the peak since it was last called."""
        self._peak_bytes = peak_bytes
        self._open: list[str] = []
        self._peaks: dict[str, float] = {}

    def enter(self, phase: str) -> None:
        """Begin a phase."""
        self._fold()
        self._open.append(phase)

    def leave(self, phase: str) -> None:
        """End a phase that was entered."""
        self._fold()
        self._open.remove(phase)

    def take(self) -> dict[str, float]:
        """Return the peaks by phase, in GiB."""
        peaks, self._peaks = self._peaks, {}
        return {phase: round(size / 2**30, 3) for phase, size in peaks.items()}

    def _fold(self) -> None:
        peak = self._peak_bytes()
        for phase in self._open:
            self._peaks[phase] = max(peak, self._peaks.get(phase, 0.0))


def gpu_peaks(sleeping_bytes: Callable[[], int]) -> DevicePeaks:
    """Return the peaks of torch's present GPU. Memory that other libraries take for themselves is not counted.

    `sleeping_bytes`: what torch counts as allocated, and an engine that sleeps has given back.
    """
    import torch

    before = 0

    def peak_bytes() -> float:
        nonlocal before
        peak, now = torch.cuda.max_memory_allocated(), sleeping_bytes()
        torch.cuda.reset_peak_memory_stats()
        # An engine that woke or fell asleep since the last call had its memory for some of the time.
        asleep, before = min(before, now), now
        return float(peak - asleep)

    return DevicePeaks(peak_bytes)


class Work:
    """The tokens that each phase processed over all ranks, and the operations of the update's model."""

    def __init__(self, peak_flops: float | None = None) -> None:
        """`peak_flops`: operations a second of all ranks' GPUs together; None where unknown, and on the CPU."""
        self._peak_flops = peak_flops
        self._tokens: dict[str, int] = {}
        self._flops = 0.0

    def add(self, phase: str, tokens: int, flops: float = 0.0) -> None:
        """Count tokens of a phase, and operations of the update."""
        self._tokens[phase] = self._tokens.get(phase, 0) + tokens
        self._flops += flops

    def take(self, seconds: Mapping[str, float]) -> dict[str, float]:
        """Return the rates of everything since the last call, which took so many seconds by phase."""
        tokens, flops, self._tokens, self._flops = self._tokens, self._flops, {}, 0.0
        timed = {phase: n for phase, n in tokens.items() if seconds.get(phase, 0.0) > 0}
        rates = {f"{phase}/tokens_per_s": round(n / seconds[phase], 1) for phase, n in timed.items()}
        if self._peak_flops is not None and flops > 0 and seconds.get("update", 0.0) > 0:
            rates["update/mfu"] = round(flops / (seconds["update"] * self._peak_flops), 4)
        return rates


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
    # The launcher's other ranks are no children of this one, but of its parent.
    root = os.getppid() if "WORLD_SIZE" in os.environ else os.getpid()
    # utime, stime, and those of children that have ended
    own = sum(sum(map(int, stat[11:15])) / tick for stat in family_of(root).values())
    return Used(own, sum(map(sum, times)) - idle, idle)
