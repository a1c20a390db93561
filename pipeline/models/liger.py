"""Modules of the package liger-kernel in a policy: RMSNorm, SwiGLU and rotary positions by its Triton kernels.

Its patches for a model's type are applied without those of the loss, which is ours. They replace the `forward` of the
policy's own modules, whose names and weights stay. Rotations are a function that all models of this type share, so they
are Liger's for each of them until `restore`.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from typing import Any

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models.kernels import is_interpreted

OF_THE_LOSS = ("cross_entropy", "fused_linear_cross_entropy")
REMEDY = "or leave train.kernels out: blocks are compiled then, where they can be"

_REPLACED: list[tuple[Any, str, Any]] = []
"""Module, name and value before it was Liger's."""


def check(device: str) -> None:
    """Raise ConfigError unless Liger is installed and its kernels run on that device."""
    if not device.startswith("cuda") and not is_interpreted():
        raise ConfigError(f"train.kernels=liger runs on CUDA, and the device is {device!r}; leave train.kernels out")
    if importlib.util.find_spec("liger_kernel") is None:
        raise ConfigError(f"train.kernels=liger: the package is missing; pip install liger-kernel, {REMEDY}")


def enable(model: Any) -> None:
    """Let the model compute by Liger's modules; it may have no weights yet. Copies of it do so too.

    Raises: ConfigError for a type of model that Liger does not know.
    """
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN as PATCHES

    patch, family = PATCHES.get(model.config.model_type), sys.modules[type(model).__module__]
    if patch is None or "model" not in inspect.signature(patch).parameters:
        known = ", ".join(sorted(PATCHES))
        raise ConfigError(
            f"train.kernels=liger: model type {model.config.model_type!r} is none that Liger knows ({known}); leave "
            "train.kernels out"
        )
    losses = {name: False for name in OF_THE_LOSS if name in inspect.signature(patch).parameters}
    before = dict(vars(family))
    patch(model=model, **losses)
    for name, value in before.items():
        if getattr(family, name) is value:
            continue
        if isinstance(value, type):
            setattr(family, name, value)  # models that are made later are their own
        else:
            _REPLACED.append((family, name, value))


def restore() -> None:
    """Give the functions that models share back to transformers."""
    while _REPLACED:
        family, name, value = _REPLACED.pop()
        setattr(family, name, value)
