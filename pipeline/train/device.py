"""The device of this process: which GPU it is, and torch's switches for training on it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from verizero.pipeline.config.sections import TrainConfig
from verizero.pipeline.errors import ConfigError, RunError
from verizero.pipeline.models.strictness import deterministic, is_deterministic, turn

CUDNN_LAST = "TORCH_CUDNN_SDPA_DEPRIORITIZED"
"""torch reads it once, at the first attention on a GPU: cuDNN is then tried after the other kernels, not before."""
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def device_index(size: int, num_seen: int, environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of this rank's GPU among the `num_seen` that this process sees, of `size` ranks.

    A task of Slurm or a pod may see its own GPU only, which is number 0 for each of them: so LOCAL_RANK counts modulo
    the GPUs seen. Raises: RunError for several ranks that do not say which of several GPUs is theirs.
    """
    local_rank = environment.get("LOCAL_RANK")
    if local_rank is None and size > 1 and num_seen > 1:
        raise RunError(
            f"WORLD_SIZE={size} and {num_seen} GPUs are seen, but LOCAL_RANK is not set: all ranks of this machine "
            "would share one GPU. Set LOCAL_RANK to the rank's number on its machine, or start the ranks by `launch`"
        )
    return int(local_rank or 0) % max(1, num_seen)


def existing_device(name: str, field: str) -> str:
    """Return the device of that name; "auto" is a GPU if there is one. Raises: ConfigError for a missing GPU."""
    num = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return "cuda" if num else "cpu"
    if name.startswith("cuda") and int(name.partition(":")[2] or 0) >= num:
        seen = f"torch sees {num} GPU{'s' * (num > 1)} here, from cuda:0 on" if num else "torch sees no GPU here"
        raise ConfigError(f"{field}={name!r}, but {seen}; give auto or cpu")
    return name


@contextmanager
def switched(config: TrainConfig, device: str) -> Iterator[None]:
    """Set torch's switches for training on a GPU within the block, and restore them after it; the CPU needs none."""
    if torch.device(device).type != "cuda":
        yield
        return
    before = {name: os.environ.get(name) for name in (CUDNN_LAST, WORKSPACE)}
    # cuDNN plans each new (rows, tokens) for a second or so, and nearly every micro-batch has another shape.
    os.environ.setdefault(CUDNN_LAST, "1")
    try:
        if config.deterministic:
            os.environ.setdefault(WORKSPACE, ":4096:8")  # cuBLAS reads it when its first handle is made
            with _deterministic():
                yield
        else:
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _deterministic() -> Iterator[None]:
    """Within the block, use kernels that give the same bytes each time; an operation without one warns."""
    attention: bool = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    convolution = torch.backends.cudnn.deterministic
    try:
        torch.backends.cuda.enable_cudnn_sdp(False)  # its backward adds up in the order in which blocks end
        torch.backends.cudnn.deterministic = True
        with deterministic():
            yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(attention)
        torch.backends.cudnn.deterministic = convolution


@contextmanager
def fixed_order() -> Iterator[None]:
    """Within the block, a backward pass must be deterministic, if `switched` made kernels deterministic.

    Attention has a deterministic backward kernel, which torch takes only if an operation without one is an error. In a
    forward pass that would refuse operations that torch only cannot prove deterministic, such as a sum along rows, so
    there torch warns. Raises: RunError for an operation whose backward has no such kernel.
    """
    if not is_deterministic():
        yield
        return
    try:
        with turn("strict"):
            yield
    except RuntimeError as exc:
        if "deterministic implementation" not in str(exc):
            raise
        raise RunError(
            f"train.deterministic=true, and a backward pass cannot repeat its bytes: {exc}. With "
            "train.deterministic=false the run trains, and two runs of one seed differ in the last digits"
        ) from exc
