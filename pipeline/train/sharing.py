"""Decides whether rows are packed and whether prompts are computed once, and finds the tokens that train.

With shared prompts the rows of one go to the same rank and the same micro-batch (`train.collate`), and
`models.shared_prompts` computes them. It also computes rows that are packed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models.forward import Targets
from verizero.pipeline.models.shared_prompts import SharedPrompts, moved
from verizero.pipeline.rl.parts import Parts
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.collate import row_lengths
from verizero.pipeline.types import Group, PackedAs, PromptOf, TrainBatch

MIN_SPARED, MIN_SPARED_ON_GPU = 0.1, 0.25
"""Prompts are computed once if that spares this share of all tokens: gathering what tokens attend to costs time too.

Measured on one thread of a CPU with a model of 0.8M parameters, as seconds of an update with prompts computed once,
against seconds with each row alone. Rows of equal length: 1.65 against 1.67 where 0.075 is spared, 1.00 against 0.99
where 0.13 is, 1.16 against 1.37 where 0.29 is. Rows of unequal length: 0.66 against 0.71 where 0.17 is spared, 0.44
against 0.59 where 0.24 is. On a GPU nothing below 0.25 was measured.
"""


def packing_of(backend: Backend) -> PackedAs | None:
    """Return the way in which rows are packed by `train.packing`; None if they are padded. Every rank must call it.

    Raises: ConfigError for `packing: on` with a policy that cannot be packed.
    """
    config = backend.train_config
    is_gpu = backend.model.device.type == "cuda"
    if config.packing == "off" or (config.packing == "auto" and not is_gpu) or backend.ranks.pieces is not None:
        return None
    if backend.can_share_prompts(in_runs=True):
        return PackedAs(config.micro_batch_tokens, in_runs=True)
    # In pieces of similar size attention has padding and new shapes: the GPU gains nothing by that.
    if config.packing == "auto":
        return None
    if not backend.can_share_prompts():
        raise ConfigError(
            f"train.packing=on: model type {backend.model.config.model_type!r} has experts, a head that is more than "
            "a product, or an attention that packed rows do not pass through; set train.packing: auto"
        )
    return PackedAs(config.micro_batch_tokens, in_runs=False)


def shared_prompts(
    backend: Backend, parts: Parts, groups: Sequence[Group], packing: PackedAs | None = None
) -> tuple[PromptOf, ...] | None:
    """Return the prompt of each row, or None if every row is padded and computed alone. Every rank must call it.

    With `packing` a row that is computed alone has a prompt of no tokens.
    """
    alone = None
    if packing is not None:
        alone = tuple(PromptOf(i, 0, tokens) for i, tokens in enumerate(row_lengths(groups)[0]))
    # A part of a sequence has no place for two responses, and without packing a critic computes each row alone.
    has_critic = parts.critic is not None and packing is None
    if not backend.train_config.share_prompts or has_critic or backend.ranks.pieces is not None:
        return alone
    prompts = row_prompts(groups)
    least = MIN_SPARED if backend.model.device.type == "cpu" else MIN_SPARED_ON_GPU
    if prompts is None or share_spared(prompts) < least:
        return alone
    return prompts if packing is not None or backend.can_share_prompts() else None


def targets_of(
    batch: TrainBatch, pieces: Sequence[Sequence[int]], widths: Sequence[int], ends: bool = False
) -> tuple[list[Tensor], list[Targets | None]]:
    """Return for each micro-batch its rows, int64 [b], and the tokens that train, on the batch's device.

    `pieces`: the rows of each micro-batch, `widths` what they are padded to. `ends`: the last token of each row is
    computed too. Targets are None where the host does not know them.
    """
    tensors = [torch.tensor(rows, dtype=torch.int64) for rows in pieces]
    if batch.spans is None:
        return list(moved(tensors, batch.rewards.device)), [None] * len(pieces)
    made = []
    for rows, width in zip(pieces, widths, strict=True):
        spans = [batch.spans[i] for i in rows]
        layout = answers = None
        if batch.prompts is not None:
            layout = SharedPrompts.of([batch.prompts[i] for i in rows], width, batch.packing, ends)
        if batch.answers is not None:
            answers = places_of([sorted({*own, *batch.answers[i]}) for own, i in zip(spans, rows, strict=True)], width)
        made.append(Targets(places_of(spans, width), layout, answers))
    for x in made:
        tensors += x.tensors()
    own = moved(tensors, batch.rewards.device)
    places = [next(own) for _ in pieces]
    return places, [x.with_tensors(own) for x in made]


def places_of(spans: Sequence[Sequence[tuple[int, int]]], width: int) -> Tensor:
    """Return int64 [n]: the places of the tokens in the spans of rows [b, width], row by row."""
    pieces = [torch.arange(i * width + begin, i * width + end) for i, own in enumerate(spans) for begin, end in own]
    return torch.cat(pieces) if pieces else torch.zeros(0, dtype=torch.int64)


def row_prompts(groups: Sequence[Group]) -> tuple[PromptOf, ...] | None:
    """Return the prompt of each row that `collate` makes of the groups; None if an episode has several turns.

    Every rank has the tokens of all prompts, so all return the same.
    """
    numbers: dict[tuple[int, ...], int] = {}
    known: dict[int, int] = {}
    prompts = []
    for rollout in (m.rollout for group in groups for m in group.members if m.reward is not None):
        if rollout.episode is not None and [len(row) for row in rollout.episode.rows] != [1]:
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
