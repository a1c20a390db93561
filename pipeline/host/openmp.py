"""Set how long torch's threads wait for each other on a core before they free it. Imported before torch.

By default OpenMP's threads wait for milliseconds, many times in a step. This costs nothing on a machine without other
work. With other work, a thread occupies a core while it waits for one that has none: a run is many times slower.
"""

from __future__ import annotations

import os
import sys

VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
SPINS = "1000"
"""Turns of the waiting loop. Without other work a run is as fast as by default; with other work it loses no time."""

_chosen = any(name in os.environ for name in VARIABLES)
TOO_LATE = not _chosen and "torch" in sys.modules
"""True if torch was imported before this package: OpenMP reads the variable once, when torch is imported."""
if not _chosen:
    os.environ[VARIABLES[0]] = SPINS  # the processes that this one starts inherit it

REMEDY = (
    "torch was imported before verizero, so other programs on this machine make the run many times slower; "
    f"import verizero first, or set {VARIABLES[0]}={SPINS} before Python starts"
)
