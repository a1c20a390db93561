"""Proofs that a shortcut computes what the model itself does: on a few tokens, with the weights at hand."""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models.kernels import HALF
from verizero.pipeline.models.runs import Runs, moved, states
from verizero.pipeline.types import Path, Run

STRIDE = 7919
"""A prime far from any vocabulary's structure: neighbouring probe tokens are far apart in the vocabulary."""
ROUNDING, ROUNDING_IN_HALF = 1e-4, 2**-3
"""The most by which rounding may move states, as a share of the greatest.

Measured in bfloat16 on the CPU, with random weights of Qwen3-0.6B and Qwen2.5-0.5B, on final states: compiled blocks
differ by 0.029 and 0.028 from plain ones, and plain ones by 0.020 and 0.028 from float32. Where texts see each other
that should not, states differ by 1.5 and 1.6.
"""
PATHS: tuple[Path, ...] = (
    (Run(0, 3), Run(1, 7)),
    (Run(2, 4),),
    (Run(0, 3), Run(3, 5), Run(4, 8)),
    (Run(0, 3), Run(3, 5), Run(5, 6)),
    (Run(0, 3), Run(3, 5)),
    (Run(6, 6),),
)
"""Rows of a packed forward that is tried: a tree of three levels, and rows that share nothing."""

_PACKS: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def probe_ids(model: Any, *shape: int) -> Tensor:
    """Return int64 token ids of that shape, spread over the model's vocabulary, on the model's device."""
    numbers = torch.arange(math.prod(shape), device=model.device)
    return (numbers * STRIDE % int(model.config.vocab_size)).view(shape)


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Within the block the model has no dropout and no gradient is recorded; its mode comes back afterwards."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def difference(ours: Tensor, theirs: Tensor) -> float:
    """Return the greatest difference, as a share of the greatest value of `theirs`."""
    wide = theirs.double()
    return float((ours.double() - wide).abs().max() / wide.abs().max().clamp(min=1e-12))


def agree(ours: Tensor, theirs: Tensor) -> bool:
    """True if both are the same up to the rounding of the type that they were computed in. NaN agrees with nothing.

    That type is not always the weights': FSDP keeps float32 and computes in bfloat16.
    """
    allowed = ROUNDING_IN_HALF if theirs.dtype in HALF else ROUNDING
    return ours.shape == theirs.shape and difference(ours, theirs) <= allowed


def packs(model: Any) -> bool:
    """True if packed rows have the states of the model's own padded forward; tried once for each model."""
    if model not in _PACKS:
        _PACKS[model] = _packs(model)
    return _PACKS[model]


def _packs(model: Any) -> bool:
    width, device = max(path[-1].end for path in PATHS), model.device
    ids = probe_ids(model, len(PATHS), width)
    ids[2:5, :3], ids[3:5, 3:5] = ids[0, :3], ids[2, 3:5]
    cut = Runs.of(PATHS, width, device=device)
    runs = cut.with_tensors(moved(cut.tensors(), device))
    try:
        with evaluating(model):
            padded = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
            ours = states(model, ids.flatten()[runs.source], runs)[runs.place]
    except torch.OutOfMemoryError:
        raise  # says nothing of the architecture
    except (TypeError, ValueError, AttributeError, RuntimeError, ConfigError):  # another architecture
        return False
    if all(agree(ours[i, : path[-1].end - 1], padded[i, : path[-1].end - 1]) for i, path in enumerate(PATHS)):
        return True
    warnings.warn(
        f"packed rows of this {model.config.model_type} are not what they are alone, so rows are padded; "
        "train.packing: off spares the trial",
        stacklevel=2,
    )
    return False
