"""Decide which rows of an update are packed, and which of their tokens are computed once for several rows.

Rows that begin with the same tokens share them, whatever they are: the prompt of a group, the history of an episode,
all before a fork. `train.collate` divides the tree among ranks and micro-batches; `models.runs` computes it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import count, pairwise
from typing import Any, Protocol

import torch

from verizero.pipeline.config.sections import TrainConfig
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models import varlen
from verizero.pipeline.models.sizes import head_size
from verizero.pipeline.rows import rows as rows_of_rollout
from verizero.pipeline.train.collate import micro_batches, sizes_of
from verizero.pipeline.train.ranks import Ranks
from verizero.pipeline.types import Group, Path, Run, StepMetrics

MIN_SAVED_SHARE, MIN_SAVED_SHARE_ON_GPU = 0.1, 0.25
"""Rows are computed as a tree if that saves at least this share of all tokens, because a tree costs time too.

Texts are packed if at least this share of what is computed would be padding.

On one thread of a CPU (0.8M parameters) an update takes as long with as without at a share of 0.13, and 15% less time
at 0.29. On a GPU nothing below 0.25 was measured.
"""
MIN_SAVED_TOKENS = 4
"""Rows share a run only if that saves so many tokens: a call of attention gathers the keys of each run's whole path.

With 1, 4 and 8 an update of 256 responses that often begin alike took the same time, within the noise of the machine.
"""


class Packer(Protocol):
    """A model that trains on rows: a backend's policy, or a reward model."""

    model: Any
    ranks: Ranks
    train_config: TrainConfig

    @property
    def dtype(self) -> torch.dtype:
        """The number type of forward and backward."""
        ...

    def can_pack(self) -> bool:
        """True if the model computes packed rows exactly, tried on its weights. Every rank must call it."""
        ...


def packed_paths(
    packer: Packer, rows: Iterable[bytes | Sequence[int]], texts: bool = False
) -> tuple[tuple[Path, ...] | None, bool]:
    """Return the path of each row if rows are packed, else None; and True if they are padded although packing pays.

    `rows`: the tokens of each (bytes: int32), on every rank those of all ranks. Every rank must call it. `texts`: rows
    differ in length, so they are packed too where much of their micro-batches would be padding.
    Raises: ConfigError for `packing: on` with a policy that cannot be packed.
    """
    config, device = packer.train_config, packer.model.device
    is_packed = packs_rows(packer)
    if config.packing == "off":
        return None, False
    paths = best_paths(rows, device)
    if is_packed:
        return paths, False
    lengths = [path[-1].end for path in paths] if texts else []
    if saved_share(paths) == 0 and padding_share(lengths, config.most_tokens) < _min_share(device):
        return None, False
    return (paths, False) if _can_pack(packer) else (None, True)


def packs_rows(packer: Packer) -> bool:
    """True if all rows are packed, also those that share nothing, by `train.packing`. Every rank must call it.

    Raises: ConfigError for `packing: on` with a policy that cannot be packed.
    """
    packing, model = packer.train_config.packing, packer.model
    if packing == "off":
        return False
    # Without a kernel for different lengths attention is in calls with padding and new shapes: nothing is gained.
    if packing == "auto" and not _on_all_ranks(packer, _has_kernel(packer)):
        return False
    if _can_pack(packer):
        return True
    if packing == "auto":
        return False
    raise ConfigError(
        f"train.packing=on: model type {model.config.model_type!r} has a head that is more than a product, or an "
        "attention that packed rows do not pass through; set train.packing: auto"
    )


def _has_kernel(packer: Packer) -> bool:
    settings, device = packer.model.config.get_text_config(), packer.model.device
    if not hasattr(settings, "num_attention_heads"):
        return False  # nothing attends
    return varlen.kernel_for(device, packer.dtype, head_size(settings)) is not None


def _can_pack(packer: Packer) -> bool:
    return _on_all_ranks(packer, packer.can_pack())


def _on_all_ranks(packer: Packer, holds: bool) -> bool:
    # A kernel can fail its proof on one GPU alone. That rank would pad its rows, have another number of micro-batches
    # than the others, and wait for them for ever.
    return not packer.ranks.any(not holds)


def ids_of_rows(groups: Sequence[Group]) -> list[bytes]:
    """Return the tokens of each row that `collate` makes of the groups, as int32. Every rank has all of them."""
    return [
        b"".join(_int32(ids) for turn in row for ids in (turn.observed, turn.sampled))
        for group in groups
        for member in group.members
        if member.reward is not None
        for row in rows_of_rollout(member.rollout)
    ]


def best_paths(rows: Iterable[bytes | Sequence[int]], device: torch.device | str) -> tuple[Path, ...]:
    """Return the path of each row of tokens (bytes: int32); rows share nothing where that would not pay."""
    contents = [row if isinstance(row, bytes) else _int32(row) for row in rows]
    paths = tree_of(contents, MIN_SAVED_TOKENS)
    if saved_share(paths) >= _min_share(device):
        return paths
    return tuple((Run(i, len(row) // 4),) for i, row in enumerate(contents))


def _min_share(device: torch.device | str) -> float:
    return MIN_SAVED_SHARE if torch.device(device).type == "cpu" else MIN_SAVED_SHARE_ON_GPU


def padding_share(lengths: Sequence[int], max_tokens: int) -> float:
    """Return the share of padding in micro-batches of rows of these lengths; 0 without rows."""
    padded = sum(len(batch) * lengths[batch[0]] for batch in micro_batches(lengths, max_tokens))
    return 1 - sum(lengths) / padded if padded else 0.0


def saved_share(paths: Sequence[Path]) -> float:
    """Return the share of all tokens that need not be computed, because several rows have them in one run."""
    total = sum(path[-1].end for path in paths)
    return 1 - sum(sizes_of(*paths).values()) / total if total else 0.0


def tree_of(rows: Sequence[bytes], min_saved: int) -> tuple[Path, ...]:
    """Return the path of each row of int32 tokens. Rows share a run where that saves at least `min_saved` tokens."""
    # In the order of bytes, rows with a common beginning are neighbours, and two rows have in common what each of those
    # between them has in common with the next.
    order = sorted(range(len(rows)), key=rows.__getitem__)
    common = [0, *(_num_common(rows[a], rows[b]) for a, b in pairwise(order))]
    paths: list[list[Run]] = [[] for _ in rows]
    numbers = count()
    branches = [(0, len(rows), 0)]  # rows from, to in `order`, and the tokens before that have a run already
    while branches:
        first, last, begin = branches.pop()
        if last - first == 1:
            row = order[first]
            if len(rows[row]) // 4 > begin or not paths[row]:
                paths[row].append(Run(next(numbers), len(rows[row]) // 4))
            continue
        end = min(common[first + 1 : last])
        cuts = [first, *(i for i in range(first + 1, last) if common[i] == end), last]
        if (end - begin) * (len(cuts) - 2) >= min_saved:
            number = next(numbers)
            for i in range(first, last):
                paths[order[i]].append(Run(number, end))
            begin = end
        branches += [(a, b, begin) for a, b in pairwise(cuts)][::-1]
    return tuple(map(tuple, paths))


def _num_common(first: bytes, second: bytes) -> int:
    """Return the number of int32 tokens with which both begin."""
    low, high = 0, min(len(first), len(second)) // 4
    while low < high:
        middle = (low + high + 1) // 2
        if first[4 * low : 4 * middle] == second[4 * low : 4 * middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _int32(ids: Sequence[int]) -> bytes:
    return (ids if isinstance(ids, array) and ids.typecode == "i" else array("i", ids)).tobytes()


def tree_metrics(paths: Sequence[Path] | None, is_refused: bool) -> StepMetrics:
    """Return the tokens of an optimiser step's rows for each that is in their tree, and how many the tree saves.

    By the rows alone, before ranks and micro-batches divide them: what two of these share is computed in both.
    `paths`: None if rows are padded. `is_refused`: although packing pays, which is counted.
    """
    fallbacks = {"tree/fallbacks": 1.0} if is_refused else {}
    if paths is None:
        return {"tree/ratio": 1.0, "tree/tokens_saved": 0.0, **fallbacks}
    tokens, computed = sum(path[-1].end for path in paths), sum(sizes_of(*paths).values())
    return {"tree/ratio": tokens / computed, "tree/tokens_saved": float(tokens - computed)}
