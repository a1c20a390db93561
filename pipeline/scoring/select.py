"""Selection of the groups to train on: those whose rewards differ, or all, as recipe and algorithm choose.

Groups are counted by their kind: kept, or why they were dropped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

from verizero.pipeline.types import Group, Prompt, ScoredRollout

GroupKind = Literal["kept", "all_right", "all_wrong", "equal", "infrastructure"]
GROUP_KINDS: tuple[GroupKind, ...] = get_args(GroupKind)
SAME = 1e-9
"""Rewards closer than this are equal: sums of the same parts may differ in their last bits."""


def form_groups(prompts: Sequence[Prompt], scored: Sequence[ScoredRollout], size: int) -> list[Group]:
    """Return groups of `size` responses, one a prompt, in order. Raises: ValueError if they do not fit."""
    if len(scored) != len(prompts) * size:
        raise ValueError(f"{len(scored)} responses do not make {len(prompts)} groups of {size}")
    groups = [Group(p, tuple(scored[i * size : (i + 1) * size])) for i, p in enumerate(prompts)]
    for group in groups:
        if any(m.rollout.prompt_id != group.prompt.id for m in group.members):
            raise ValueError(f"group of prompt {group.prompt.id!r} holds responses to another prompt")
    return groups


def classify_group(group: Group, by_components: bool = False, by_turns: bool = False) -> GroupKind:
    """Return the kind of a group: "kept" if its rewards (or components, or rewards of turns) differ, else why not.

    "infrastructure": fewer than two members have a reward, because graders failed.
    """
    rewards = group.rewards
    # A group of one member has nothing to be compared with by design, and needs one reward only.
    if len(rewards) < min(2, len(group.members)):
        return "infrastructure"
    columns: list[Sequence[float]] = [rewards]
    if by_components:
        columns += zip(*(m.components for m in group.members if m.reward is not None), strict=True)
    if by_turns:
        columns.append([r for m in group.members if m.reward is not None for r in m.turn_rewards if r is not None])
    if any(max(c) - min(c) > SAME for c in columns if c):
        return "kept"
    graded = [m.verdict for m in group.members if m.reward is not None]
    if all(v.is_correct for v in graded):
        return "all_right"
    return "all_wrong" if math.isclose(max(rewards), 0.0, abs_tol=SAME) else "equal"


def select(
    groups: Sequence[Group], keep: Literal["informative", "all"], by_components: bool = False, by_turns: bool = False
) -> tuple[list[Group], dict[GroupKind, int]]:
    """Return the groups to train on, and the number of groups of each kind.

    keep "all" trains on equal rewards too, but never on a group whose graders failed.
    """
    counts: dict[GroupKind, int] = dict.fromkeys(GROUP_KINDS, 0)
    kept = []
    for group in groups:
        kind = classify_group(group, by_components, by_turns)
        counts[kind] += 1
        if kind == "kept" or (keep == "all" and kind != "infrastructure"):
            kept.append(group)
    return kept, counts


def forecast(missing: int, acceptance: float, max_prompts: int) -> int:
    """Return how many prompts to sample, at most `max_prompts`, so that about `missing` groups are kept."""
    return min(max_prompts, max(1, math.ceil(missing / max(acceptance, 1e-3))))


def acceptance_after(before: float, kept: int, sampled: int, weight: float = 0.3) -> float:
    """Return the moving average of the share of kept groups after one more batch, which has the given weight."""
    return before if sampled == 0 else (1 - weight) * before + weight * kept / sampled
