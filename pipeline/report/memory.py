"""The peak memory of a run over all of its processes: one that was killed and resumed has several."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

FILE = "peak_memory.json"


def peak_mib() -> float:
    """The most memory that this process has had resident, in MiB.

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
    """The highest peak that was noted in the run's folder, in MiB; 0 where none was, or its note is torn."""
    try:
        return float(json.loads((folder / FILE).read_text())["peak_memory_mib"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0
