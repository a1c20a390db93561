"""A kernel or its twin: by device, by the variable, and by a proof on the device."""

from __future__ import annotations

import warnings

import pytest
import torch

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
    way: str | None,
    device: torch.device,
    has_triton: bool,
    is_interpreted: bool,
    answer: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(kernels.VARIABLE, raising=False)
    if way is not None:
        monkeypatch.setenv(kernels.VARIABLE, way)
    monkeypatch.setenv("TRITON_INTERPRET", str(int(is_interpreted)))
    monkeypatch.setattr(kernels, "has_triton", lambda: has_triton)
    assert kernels.wanted(device) is answer


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_kernel_that_differs_or_does_not_compile_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
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
