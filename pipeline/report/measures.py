"""Measures of a step and of a run: tokens a second, the MFU of the update, and peaks of memory."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

FILE = "peak_memory.json"


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
