"""Triton kernels for GPUs, one a file. Each has a twin of plain torch, which any device takes.

- `log_probs`: log-probs and entropies without logits; its twin is `verizero.pipeline.models.forward`.

`wanted` says whether a device is to use them. Only this folder imports triton, and only the files of the kernels do:
this one loads without it.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from verizero.pipeline.errors import ConfigError

HALF = (torch.bfloat16, torch.float16)
VARIABLE = "VERIZERO_KERNELS"
WAYS = ("auto", "on", "off")
"""auto: on CUDA where triton is installed. on: always, and an error where they do not run. off: never."""


def wanted(device: torch.device) -> bool:
    """True if kernels are to be used for tensors of that device; VARIABLE in the environment has one of WAYS.

    Raises: ConfigError for another word, and for "on" where no kernel can run.
    """
    way = os.environ.get(VARIABLE, WAYS[0])
    if way not in WAYS:
        raise ConfigError(f"{VARIABLE}={way!r}; set it to one of {', '.join(WAYS)}")
    if way != "on":
        return way == "auto" and device.type == "cuda" and has_triton()
    if not has_triton():
        raise ConfigError(f"{VARIABLE}=on, and triton is not installed; install it, or set {VARIABLE}=auto")
    if device.type != "cuda" and not is_interpreted():
        raise ConfigError(f"{VARIABLE}=on for a tensor on {device}; set TRITON_INTERPRET=1 too, or set {VARIABLE}=auto")
    return True


def matches_twin(name: str, proof: Callable[[], float], allowed: float) -> bool:
    """True if `proof()`, how far a kernel is from its twin on a few numbers, is at most `allowed`.

    Otherwise, and if the kernel cannot be compiled, warn that the twin is used. Callers cache the answer.

    Raises: ConfigError instead of the warning if VARIABLE is "on"; OutOfMemoryError.
    """
    try:
        gap = proof()
        if gap <= allowed:  # NaN is not
            return True
        why = f"it differs from torch by {gap:.2g}, where {allowed:.2g} is allowed"
    except torch.OutOfMemoryError:
        raise  # says nothing of the kernel, and a run that continues with more memory would have other bytes
    except Exception as exc:  # of a compiler, which has no common error class
        why = f"{type(exc).__name__}: {exc}"
    message = f"the kernel of {name} is not used, and torch computes in its place: {why}"
    if os.environ.get(VARIABLE) == "on":
        raise ConfigError(f"{VARIABLE}=on, but {message}")
    warnings.warn(message, stacklevel=2)
    return False


@functools.cache
def has_triton() -> bool:
    """True if triton is installed."""
    return importlib.util.find_spec("triton") is not None


def is_interpreted() -> bool:
    """True if triton interprets kernels on the CPU in place of compiling them. It is slow, and for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def launching_on(device: torch.device) -> AbstractContextManager[object]:
    """Within the block, kernels are launched on that device: a new thread's own is the first GPU."""
    if device.type != "cuda" or torch.cuda.current_device() == device.index:
        return nullcontext()
    return torch.cuda.device(device)
