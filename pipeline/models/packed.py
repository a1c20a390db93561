"""Hidden states of rows without padding: several texts in one row, none of which sees another.

transformers packs by positions: where they start again at 0, its masks (and the attention kernels for rows of several
texts) separate two texts. Not every architecture has such a mask, so `check_packs` proves it on the weights at hand.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models.proof import agree, evaluating, probe_ids
from verizero.pipeline.models.widths import forward_width

ALIKE = 0.8
"""Rows shorter than this share of the longest one next to them would be padded much."""

_PROVED: weakref.WeakSet[Any] = weakref.WeakSet()


def bins(lengths: Sequence[int]) -> list[list[int]]:
    """Put rows, longest first, into as few bins as best fit needs, each of at most the longest row's tokens."""
    room = max(lengths)
    filled: list[list[int]] = []
    left: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        fits = [b for b, free in enumerate(left) if free >= lengths[i]]
        if not fits:
            filled.append([])
            left.append(room)
        chosen = min(fits, key=lambda b: left[b]) if fits else len(filled) - 1
        filled[chosen].append(i)
        left[chosen] -= lengths[i]
    return filled


def packed_states(model: Any, ids: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return [N, H] after the last block and norm, for rows without padding: ids int64 [N], one row after the other.

    Raises: ConfigError for a model in which packed texts see each other.
    """
    check_packs(model)
    return _states(model, ids, lengths)


def _states(model: Any, ids: Tensor, lengths: Sequence[int]) -> Tensor:
    starts = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    packed = bins(lengths)
    width = forward_width(max(lengths), ids.device)
    source = torch.zeros(len(packed), width, dtype=torch.int64)  # padding repeats the first token, each alone
    positions = torch.zeros_like(source)
    place = torch.empty(len(ids), dtype=torch.int64)
    for b, rows in enumerate(packed):
        column = 0
        for i in rows:
            own, at = torch.arange(lengths[i]), slice(column, column + lengths[i])
            source[b, at], positions[b, at] = starts[i] + own, own
            place[starts[i] : starts[i + 1]] = b * width + column + own
            column += lengths[i]
    hidden: Tensor = model.base_model(
        input_ids=ids[source.to(ids.device)], position_ids=positions.to(ids.device), use_cache=False
    ).last_hidden_state
    return hidden.flatten(0, 1).index_select(0, place.to(ids.device))


def check_packs(model: Any) -> None:
    """Prove once for each model that its packed rows are what they are alone. Raises: ConfigError with the remedy."""
    if model in _PROVED:
        return
    lengths = [7, 3, 4, 1, 2]
    ids = probe_ids(model, sum(lengths))
    why = ""
    try:
        with evaluating(model):
            packed = _states(model, ids, lengths)
            alone = [model.base_model(input_ids=row[None], use_cache=False) for row in torch.split(ids, lengths)]
        if not agree(model, packed, torch.cat([out.last_hidden_state[0] for out in alone])):
            why = "packed texts would see each other"
    except (TypeError, ValueError, RuntimeError) as exc:
        why = f"it takes no packed rows ({type(exc).__name__}: {exc})"
    if why:
        raise ConfigError(f"packing: model type {model.config.model_type!r}: {why}; set packing: false")
    _PROVED.add(model)
