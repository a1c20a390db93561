"""What the package sets for its process unless its caller has: freed memory is kept, and how threads wait."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from verizero.pipeline.host.heap import trim_heap

pytestmark = pytest.mark.run  # measures the memory of other programs

FAULTS = """
import resource, torch
from verizero.pipeline.host.heap import keep_freed_memory

keep_freed_memory()

def use():
    tensors = [torch.ones(7 << 18) for _ in range(5)]

for _ in range(3): use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10): use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
TRIMMED = """
import ctypes, re, torch
from verizero.pipeline.host.heap import keep_freed_memory, trim_heap

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) >> 10

keep_freed_memory()
trim_heap()
before = resident()
tensors = [torch.ones(1 << 20) for _ in range(100)]
last = torch.ones(1 << 20)  # the heap cannot shrink below it
del tensors
kept = resident()
trim_heap()
print(kept - before, resident() - before)
"""
PAGES = 10 * 5 * (7 << 20) // 4096
"""Those of all tensors that are made between the two counts."""


def faults(**environment):
    named = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", FAULTS]
    done = subprocess.run(command, env={**named, **environment}, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.parametrize("more", [{}, {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}])
@pytest.mark.nightly
def test_pages_of_freed_tensors_are_used_again(more):
    assert faults(**more) < PAGES / 100


@pytest.mark.parametrize(
    "more", [{"MALLOC_MMAP_THRESHOLD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072"}]
)
def test_what_the_caller_has_set_stays(more):
    assert faults(**more) > PAGES / 2


def test_a_trimmed_heap_has_no_freed_tensors():
    done = subprocess.run([sys.executable, "-c", TRIMMED], capture_output=True, text=True, check=True)
    kept, left = map(int, done.stdout.split())
    assert kept > 350
    assert left < 40


def test_memory_that_tcmalloc_keeps_is_given_back(monkeypatch):
    calls = []
    library = SimpleNamespace(MallocExtension_ReleaseFreeMemory=lambda: calls.append("released"))
    monkeypatch.setattr("ctypes.CDLL", lambda _: library)
    trim_heap()
    assert calls == ["released"]


PRINT = (
    "import os, verizero; from verizero.pipeline.host.openmp import TOO_LATE;"
    "print(os.environ.get('GOMP_SPINCOUNT'), TOO_LATE)"
)


@pytest.mark.parametrize(
    ("chosen", "first", "shown"),
    [
        ({}, "", "1000 False"),
        ({}, "import torch; ", "1000 True"),
        ({"GOMP_SPINCOUNT": "7"}, "import torch; ", "7 False"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "", "None False"),
    ],
)
@pytest.mark.run
@pytest.mark.nightly
def test_the_package_chooses_before_torch_and_never_against_the_user(chosen, first, shown):
    clean = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", first + PRINT], env=clean | chosen, capture_output=True, text=True)
    assert done.stdout.strip() == shown, done.stderr
