"""Decide whether rows are packed, and whether rows with equal prompts compute them once.

Rows that share a prompt go to the same rank and the same micro-batch (`train.collate`); `models.runs` computes them.
"""

from __future__ import annotations

from collections.abc import Sequence

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models import varlen
from verizero.pipeline.models.routing import num_experts
from verizero.pipeline.models.sizes import head_size
from verizero.pipeline.rl.parts import Parts
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.collate import row_lengths
from verizero.pipeline.types import Group, PromptOf

MIN_SPARED_SHARE, MIN_SPARED_SHARE_ON_GPU = 0.1, 0.25
"""Prompts are computed once if that spares at least this share of all tokens, because to share them costs time too.

On one thread of a CPU (0.8M parameters) an update takes as long with as without at a share of 0.13, and 15% less time
at 0.29. On a GPU nothing below 0.25 was measured.
"""


def packed_prompts(backend: Backend, parts: Parts, groups: Sequence[Group]) -> tuple[PromptOf, ...] | None:
    """Return the prompt of each row if rows are packed; None if they are padded. Every rank must call it.

    A row that shares nothing has a prompt of no tokens. Rows are packed if `train.packing` says so, or if sharing
    prompts spares enough tokens.

    Raises: ConfigError for `packing: on` with a policy that cannot be packed.
    """
    is_packed = packs_rows(backend)
    unshared = unshared_prompts(row_lengths(groups)[0]) if is_packed else None
    # Sequences in pieces over ranks cannot share a prompt. A critic in padded updates has forwards of its own.
    has_padded_critic = parts.critic is not None and not is_packed
    if not backend.train_config.share_prompts or has_padded_critic or backend.ranks.pieces is not None:
        return unshared
    prompts = prompts_of_rows(groups)
    min_share = MIN_SPARED_SHARE if backend.model.device.type == "cpu" else MIN_SPARED_SHARE_ON_GPU
    if prompts is None or spared_share(prompts) < min_share:
        return unshared
    return prompts if is_packed or _can_pack(backend) else None


def packs_rows(backend: Backend) -> bool:
    """True if all rows are packed, by `train.packing`. Every rank must call it.

    Raises: ConfigError for `packing: on` with a policy that cannot be packed.
    """
    packing, model = backend.train_config.packing, backend.model
    if packing == "off" or backend.ranks.pieces is not None:
        return False
    # Without a kernel for different lengths attention is in calls with padding and new shapes: nothing is gained.
    if packing == "auto" and not _on_all_ranks(backend, _has_kernel(backend)):
        return False
    if _can_pack(backend):
        return True
    if packing == "auto":
        return False
    raise ConfigError(
        f"train.packing=on: model type {model.config.model_type!r} has experts, a head that is more than a product, or "
        "an attention that packed rows do not pass through; set train.packing: auto"
    )


def _has_kernel(backend: Backend) -> bool:
    settings, device = backend.model.config.get_text_config(), backend.model.device
    if not hasattr(settings, "num_attention_heads"):
        return False  # nothing attends
    return varlen.kernel_for(device, backend.dtype, head_size(settings)) is not None


def _can_pack(backend: Backend) -> bool:
    # With experts, their choices are recorded and counted for each response: rows stay padded.
    return num_experts(backend.model.config) is None and _on_all_ranks(backend, backend.can_pack())


def _on_all_ranks(backend: Backend, holds: bool) -> bool:
    # A kernel can fail its proof on one GPU alone. That rank would pad its rows, have another number of micro-batches
    # than the others, and wait for them for ever.
    return not backend.ranks.any(not holds)


def unshared_prompts(lengths: Sequence[int]) -> tuple[PromptOf, ...]:
    """Return the prompts of packed rows that share nothing: each has no tokens."""
    return tuple(PromptOf(i, 0, tokens) for i, tokens in enumerate(lengths))


def prompts_of_rows(groups: Sequence[Group]) -> tuple[PromptOf, ...] | None:
    """Return the prompt of each row that `collate` makes of the groups; None if an episode has several turns.

    Every rank has the tokens of all prompts, so all return the same.
    """
    numbers: dict[tuple[int, ...], int] = {}
    number_of_object: dict[int, int] = {}  # the responses of a group mostly have the same object: no tuple, no hash
    prompts = []
    for rollout in (m.rollout for group in groups for m in group.members if m.reward is not None):
        if rollout.episode is not None and [len(row) for row in rollout.episode.rows] != [1]:
            return None
        ids = rollout.prompt_ids
        if id(ids) not in number_of_object:
            number_of_object[id(ids)] = numbers.setdefault(tuple(ids), len(numbers))
        prompts.append(PromptOf(number_of_object[id(ids)], len(ids), len(ids) + len(rollout.response_ids)))
    return tuple(prompts)


def spared_share(prompts: Sequence[PromptOf]) -> float:
    """Return the share of all tokens that need not be computed if each prompt is computed once."""
    distinct_tokens = sum({p.number: p.tokens for p in prompts}.values())
    total_tokens = sum(p.row_tokens for p in prompts)
    return (sum(p.tokens for p in prompts) - distinct_tokens) / total_tokens if total_tokens else 0.0
