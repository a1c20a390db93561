"""GPUs of this machine that torch cannot use."""

from __future__ import annotations

import os
import re
from pathlib import Path

HIDDEN = ("", "-1")
"""Values of CUDA_VISIBLE_DEVICES with which a process shall see no GPU."""


def unused_driver(proc: Path = Path("/proc"), dev: Path = Path("/dev")) -> str | None:
    """Return the version of NVIDIA's driver where torch finds no GPU; None if it shall find none.

    A container without GPUs shows the driver of its host, but no devices.
    """
    file = proc / "driver" / "nvidia" / "version"
    if os.environ.get("CUDA_VISIBLE_DEVICES") in HIDDEN or not file.is_file() or not any(dev.glob("nvidia[0-9]*")):
        return None
    match = re.search(r"\d+\.\d+(\.\d+)?", file.read_text(errors="replace"))
    return None if match is None else match[0]


def fault_of(driver: str, cuda: str | None) -> tuple[str, str]:
    """Return why torch finds no GPU behind this driver, and the remedy. cuda: torch's; None for a build for the CPU."""
    if cuda is None:
        return f"a GPU with driver {driver}, and torch is its CPU build", "run make install-gpu"
    remedy = "CUDA 13 needs driver 580 or newer; update the driver, or see what nvidia-smi says"
    return f"torch of CUDA {cuda} cannot use the GPU with driver {driver}", remedy
