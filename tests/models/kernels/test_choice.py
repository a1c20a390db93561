"""Which kernels are used, by the variable and the device; and all of them compile for GPUs, without one here."""

import json
import os
import subprocess
import sys
import warnings

import pytest
import torch

from tests.source import ROOT
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models import kernels

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("way", "device", "has_triton", "is_interpreted", "answer"),
    [
        (None, CUDA, True, False, True),
        (None, CUDA, False, False, False),
        (None, CPU, True, False, False),
        (None, CPU, True, True, False),
        ("auto", CUDA, True, False, True),
        ("auto", torch.device("meta"), True, False, False),
        ("off", CUDA, True, False, False),
        ("on", CUDA, True, False, True),
        ("on", CPU, True, True, True),
    ],
)
def test_kernels_are_for_cuda_unless_the_variable_says_otherwise(
    way, device, has_triton, is_interpreted, answer, monkeypatch
):
    monkeypatch.delenv(kernels.VARIABLE, raising=False)
    if way is not None:
        monkeypatch.setenv(kernels.VARIABLE, way)
    monkeypatch.setenv("TRITON_INTERPRET", str(int(is_interpreted)))
    monkeypatch.setattr(kernels, "has_triton", lambda: has_triton)
    assert kernels.wanted(device) is answer


def test_what_cannot_be_is_refused(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv(kernels.VARIABLE, "yes")
    with pytest.raises(ConfigError, match="VERIZERO_KERNELS='yes'; set it to one of auto, on, off"):
        kernels.wanted(CPU)
    monkeypatch.setenv(kernels.VARIABLE, "on")
    with pytest.raises(ConfigError, match="set TRITON_INTERPRET=1 too"):
        kernels.wanted(CPU)
    monkeypatch.setattr(kernels, "has_triton", lambda: False)
    with pytest.raises(ConfigError, match="triton is not installed"):
        kernels.wanted(CUDA)


def broken() -> float:
    raise RuntimeError("out of shared memory")


def test_a_kernel_that_differs_or_does_not_compile_is_not_used(monkeypatch):
    monkeypatch.delenv(kernels.VARIABLE, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernels.matches_twin("sums", lambda: 0.5, 0.5)
    for proof, why in ((lambda: 0.75, "differs from torch by 0.75"), (lambda: float("nan"), "nan"), (broken, "shared")):
        with pytest.warns(
            UserWarning, match=f"the kernel of sums is not used, and torch computes in its place: .*{why}"
        ):
            assert not kernels.matches_twin("sums", proof, 0.5)
        with monkeypatch.context() as patched:
            patched.setenv(kernels.VARIABLE, "on")
            with pytest.raises(ConfigError, match=why):
                kernels.matches_twin("sums", proof, 0.5)


SHARED = {80: 99 << 10, 90: 227 << 10, 100: 227 << 10}
"""Compute capability, times ten, of A100, H100 and B200; the shared memory of one program, of the smallest GPU with
those instructions: an L4 or RTX 4090 has 99 KiB, an A100 163. Source: CUDA C++ Programming Guide, table of
specifications."""
STACK = 16
"""Bytes; more would be registers that are spilled to memory."""


@pytest.mark.run
@pytest.mark.nightly
def test_every_kernel_compiles_for_gpus(tmp_path):
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
