"""Decides whether rows are packed, and whether they share their prompts.

Rows that share a prompt go to the same rank and the same micro-batch (`train.collate`); `models.runs` computes them.
"""

from __future__ import annotations

from collections.abc import Sequence

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models import varlen
from verizero.pipeline.models.routing import num_experts
from verizero.pipeline.rl.parts import Parts
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.collate import row_lengths
from verizero.pipeline.types import Group, PromptOf

MIN_SHARED_SHARE, MIN_SHARED_SHARE_ON_GPU = 0.1, 0.25
"""Prompts are computed once if that spares this share of all tokens: gathering what tokens attend to costs time too.

Measured on one thread of a CPU with a model of 0.8M parameters, as seconds of an update with prompts computed once,
against seconds with each row alone. Rows of equal length: 1.65 against 1.67 where 0.075 is spared, 1.00 against 0.99
where 0.13 is, 1.16 against 1.37 where 0.29 is. Rows of unequal length: 0.66 against 0.71 where 0.17 is spared, 0.44
against 0.59 where 0.24 is. On a GPU nothing below 0.25 was measured.
"""


def packed_prompts(backend: Backend, parts: Parts, groups: Sequence[Group]) -> tuple[PromptOf, ...] | None:
    """Return the prompt of each row if rows are packed; None if they are padded. Every rank must call it.

    A row that shares nothing has a prompt of no tokens. Rows are packed by `train.packing`, and also where sharing
    prompts spares enough.

    Raises: ConfigError for `packing: on` with a policy that cannot be packed.
    """
    packs = packs_rows(backend)
    alone = unshared_prompts(row_lengths(groups)[0]) if packs else None
    # A part of a sequence has no place for two responses. In padded updates a critic has forwards of its own.
    has_critic = parts.critic is not None and not packs
    if not backend.train_config.share_prompts or has_critic or backend.ranks.pieces is not None:
        return alone
    prompts = prompts_of_rows(groups)
    least = MIN_SHARED_SHARE if backend.model.device.type == "cpu" else MIN_SHARED_SHARE_ON_GPU
    if prompts is None or shared_share(prompts) < least:
        return alone
    return prompts if packs or _can_pack(backend) else None


def packs_rows(backend: Backend) -> bool:
    """True if `train.packing` packs all rows. Every rank must call it.

    Raises: ConfigError for `packing: on` with a policy that cannot be packed.
    """
    wanted, model = backend.train_config.packing, backend.model
    if wanted == "off" or backend.ranks.pieces is not None:
        return False
    # In calls attention has padding and new shapes: a GPU without the kernel gains nothing by that.
    if wanted == "auto" and not varlen.is_proved(model.device, model.dtype):
        return False
    if _can_pack(backend):
        return True
    if wanted == "auto":
        return False
    raise ConfigError(
        f"train.packing=on: model type {model.config.model_type!r} has experts, a head that is more than a product, or "
        "an attention that packed rows do not pass through; set train.packing: auto"
    )


def _can_pack(backend: Backend) -> bool:
    # Choices of experts are recorded and counted for each response.
    return num_experts(backend.model.config) is None and backend.can_pack()


def unshared_prompts(lengths: Sequence[int]) -> tuple[PromptOf, ...]:
    """Return the prompts of packed rows that share nothing."""
    return tuple(PromptOf(i, 0, tokens) for i, tokens in enumerate(lengths))


def prompts_of_rows(groups: Sequence[Group]) -> tuple[PromptOf, ...] | None:
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


def shared_share(prompts: Sequence[PromptOf]) -> float:
    """Return the share of all tokens that need not be computed if each prompt is computed once."""
    once = sum({p.number: p.tokens for p in prompts}.values())
    total = sum(p.row_tokens for p in prompts)
    return (sum(p.tokens for p in prompts) - once) / total if total else 0.0
