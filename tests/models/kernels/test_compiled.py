"""The kernels compile for GPUs, on a machine without one: within their shared memory, without spilled registers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SHARED = {80: 99 << 10, 90: 227 << 10, 100: 227 << 10}
"""Compute capability, times ten, of A100, H100 and B200; the shared memory of one program, of the smallest GPU with
those instructions: an L4 or RTX 4090 has 99 KiB, an A100 163. Source: CUDA C++ Programming Guide, table of
specifications."""
STACK = 16
"""Bytes; more would be registers that are spilled to memory."""


@pytest.mark.run
@pytest.mark.nightly
def test_every_kernel_compiles_for_gpus(tmp_path: Path) -> None:
    plain = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    words = [sys.executable, "-m", "tests.models.kernels.compiled", *map(str, SHARED)]
    done = subprocess.run(
        words,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**plain, "TRITON_CACHE_DIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    made = [json.loads(line) for line in done.stdout.splitlines()]
    assert {(m["kernel"], m["dtype"], m["capability"]) for m in made} == {
        (kernel, *which)
        for kernel in ("_forward", "_to_logits")
        for which in (("bfloat16", 80), ("float32", 80), ("bfloat16", 90), ("bfloat16", 100))
    }
    # Programs of their own for one token, for numbers that 16 divides and for others, with entropies and without.
    assert len([m for m in made if (m["dtype"], m["capability"]) == ("bfloat16", 80)]) >= 12
    for m in made:
        assert m["shared"] <= SHARED[m["capability"]], m
        assert m["stack"] <= STACK, m
        assert (m["tensor cores"] is not None) == (m["dtype"] == "bfloat16"), m
