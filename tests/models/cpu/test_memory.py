"""Memory of freed tensors: it is used again, unless the caller of the process has said otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration  # measures the memory of other programs

FAULTS = """
import resource, torch
from verizero.pipeline.models.cpu.memory import keep_freed_memory

keep_freed_memory()

def use():
    tensors = [torch.ones(7 << 18) for _ in range(5)]

for _ in range(3): use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10): use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = 10 * 5 * (7 << 20) // 4096
"""Those of all tensors that are made between the two counts."""


def faults(**environment: str) -> int:
    named = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    command = [sys.executable, "-c", FAULTS]
    done = subprocess.run(command, env={**named, **environment}, capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_pages_of_freed_tensors_are_used_again() -> None:
    assert faults() < PAGES / 100


def test_what_the_caller_has_set_stays() -> None:
    assert faults(MALLOC_MMAP_THRESHOLD_="131072") > PAGES / 2
