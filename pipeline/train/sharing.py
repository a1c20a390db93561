"""Decides whether an update computes each prompt once for all of its responses, and finds the tokens that train.

With shared prompts the rows of one go to the same rank and the same micro-batch (`train.collate`), and
`models.shared_prompts` computes them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pipeline.models.forward import Targets
from pipeline.models.shared_prompts import SharedPrompts, moved
from pipeline.rl.parts import Parts
from pipeline.train.backend import Backend
from pipeline.types import Group, PromptOf, TrainBatch

MIN_SPARED = 0.25
"""Prompts are computed once if that spares this share of all tokens: gathering what tokens attend to costs time too."""


def shared_prompts(backend: Backend, parts: Parts, groups: Sequence[Group]) -> tuple[PromptOf, ...] | None:
    """Return the prompt of each row, or None if every row is to be computed alone. Every rank must call it."""
    # A critic's values are computed for each row alone, and a part of a sequence has no place for two responses.
    if not backend.train_config.share_prompts or parts.critic is not None or backend.ranks.pieces is not None:
        return None
    prompts = row_prompts(groups)
    if prompts is None or share_spared(prompts) < MIN_SPARED or not backend.can_share_prompts():
        return None
    return prompts


def targets_of(
    batch: TrainBatch, pieces: Sequence[Sequence[int]], widths: Sequence[int]
) -> tuple[list[Tensor], list[Targets | None]]:
    """Return for each micro-batch its rows, int64 [b], and the tokens that train, on the batch's device.

    `pieces`: the rows of each micro-batch, `widths` what they are padded to. Targets are None where the host does not
    know them.
    """
    tensors = [torch.tensor(rows, dtype=torch.int64) for rows in pieces]
    layouts: list[SharedPrompts | None] = [None] * len(pieces)
    if batch.prompts is not None:
        of_row = batch.prompts
        layouts = [SharedPrompts.of([of_row[i] for i in rows], w) for rows, w in zip(pieces, widths, strict=True)]
    if batch.spans is not None:
        tensors += [_trained([batch.spans[i] for i in rows], w) for rows, w in zip(pieces, widths, strict=True)]
        tensors += [t for layout in layouts if layout is not None for t in layout.tensors()]
    own = moved(tensors, batch.rewards.device)
    places = [next(own) for _ in pieces]
    if batch.spans is None:
        return places, [None] * len(pieces)
    at = [next(own) for _ in pieces]
    return places, [Targets(a, None if x is None else x.with_tensors(own)) for a, x in zip(at, layouts, strict=True)]


def _trained(spans: Sequence[Sequence[tuple[int, int]]], width: int) -> Tensor:
    """Return int64 [n]: the places of the tokens in the spans of rows [b, width], row by row."""
    pieces = [torch.arange(i * width + begin, i * width + end) for i, own in enumerate(spans) for begin, end in own]
    return torch.cat(pieces) if pieces else torch.zeros(0, dtype=torch.int64)


def row_prompts(groups: Sequence[Group]) -> tuple[PromptOf, ...] | None:
    """Return the prompt of each row that `collate` makes of the groups; None if one of them is of an episode.

    Every rank has the tokens of all prompts, so all return the same.
    """
    numbers: dict[tuple[int, ...], int] = {}
    known: dict[int, int] = {}
    prompts = []
    for rollout in (m.rollout for group in groups for m in group.members if m.reward is not None):
        if rollout.episode is not None:
            return None
        ids = rollout.prompt_ids
        if id(ids) not in known:  # the responses of a group mostly have one object
            known[id(ids)] = numbers.setdefault(tuple(ids), len(numbers))
        prompts.append(PromptOf(known[id(ids)], len(ids), len(ids) + len(rollout.response_ids)))
    return tuple(prompts)


def share_spared(prompts: Sequence[PromptOf]) -> float:
    """Return the share of all tokens that need not be computed if each prompt is computed once."""
    once = sum({p.number: p.tokens for p in prompts}.values())
    total = sum(p.row_tokens for p in prompts)
    return (sum(p.tokens for p in prompts) - once) / total if total else 0.0
