"""Process supervision against a slow double of the paper, and where it must be outcome supervision."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from torch import Tensor

from tests.oracles.advantages import group_norm, process
from tests.train.batches import groups_of
from verizero.pipeline.algorithms.base import load_algorithm
from verizero.pipeline.config.rl import RlConfig, check_rl
from verizero.pipeline.config.scoring import ScoringConfig
from verizero.pipeline.rl.credit import AdvantageInputs, compute_advantages
from verizero.pipeline.scoring.select import classify_group, select
from verizero.pipeline.train.collate import collate, turn_table
from verizero.pipeline.types import Group, ScoredRollout

Steps = tuple[tuple[int, float], ...]


def random_steps(draw: random.Random, length: int) -> Steps:
    """Up to four steps, some without a token of their own; the last one ends with the response."""
    ends = [*sorted(draw.choices(range(1, length + 1), k=draw.randint(0, 3))), length]
    return tuple((end, draw.choice([0.0, 1.0, 0.5, -2.0])) for end in ends)


def stepped(seed: int, share: float = 0.8) -> list[Group]:
    """Groups in which that share of the responses has steps."""
    draw = random.Random(seed)

    def with_steps(m: ScoredRollout) -> ScoredRollout:
        has = m.reward is not None and draw.random() < share
        return replace(m, steps=random_steps(draw, m.rollout.num_sampled)) if has else m

    return [replace(g, members=tuple(map(with_steps, g.members))) for g in groups_of(seed=seed)]


def rewarded(groups: Sequence[Group]) -> list[tuple[int, ScoredRollout]]:
    return [(g, m) for g, group in enumerate(groups) for m in group.members if m.reward is not None]


def inputs_of(groups: Sequence[Group]) -> AdvantageInputs:
    batch = collate(groups, 0)
    mask = batch.response_mask.double()
    return AdvantageInputs(
        batch.rewards, batch.group_ids, mask, turn_ids=batch.turn_ids, turn_rewards=turn_table(groups)
    )


def by_row(advantages: Tensor, mask: Tensor) -> list[list[float]]:
    assert bool((advantages[mask == 0] == 0).all())
    return [row[own > 0].tolist() for row, own in zip(advantages, mask, strict=True)]


@pytest.mark.parametrize(("coef", "outcome"), [(1.0, 0.0), (0.5, 0.3)])
@pytest.mark.parametrize("seed", range(4))
def test_advantages_are_the_papers_formula(seed: int, coef: float, outcome: float) -> None:
    groups = stepped(seed)
    parts = load_algorithm("grpo_process", {"credit_coef": coef, "credit_outcome": outcome})[1]
    inputs = inputs_of(groups)
    found = by_row(compute_advantages(parts, inputs).advantages, inputs.response_mask)
    members = rewarded(groups)
    numbers = [g for g, _ in members]
    rewards = [float(m.reward or 0.0) for _, m in members]
    # The oracle counts tokens from 0, and a response without steps is one step.
    lengths = [m.rollout.num_sampled for _, m in members]
    steps = [
        [(end - 1, r) for end, r in m.steps] or [(n - 1, reward)]
        for (_, m), n, reward in zip(members, lengths, rewards, strict=True)
    ]
    assert any(len({end for end, _ in own}) < len(own) for own in steps)
    by_steps = process(steps, lengths, numbers, 1e-6)
    whole = group_norm(rewards, numbers, "group", 1, 1e-6)
    for own, of_steps, of_response in zip(found, by_steps, whole, strict=True):
        assert own == pytest.approx([outcome * of_response + coef * x for x in of_steps], rel=1e-11, abs=1e-11)


def test_a_group_whose_steps_alone_differ_is_informative_for_credit_by_turn() -> None:
    (group,) = groups_of(num=1, size=2, lost=False)
    members = tuple(replace(m, reward=0.0, steps=((1, float(i)),)) for i, m in enumerate(group.members))
    group = replace(group, members=members)
    assert classify_group(group) != "kept"
    assert select([group], "informative", by_turns=True)[1]["kept"] == 1
    flat = replace(group, members=tuple(replace(m, steps=((1, 0.0),)) for m in members))
    assert select([flat], "informative", by_turns=True)[1]["kept"] == 0


def test_components_are_refused_where_only_steps_count() -> None:
    components = ScoringConfig.model_validate({"components": [{"verifier": "length"}]})
    rl = {
        "algorithm": {"name": "grpo_process"},
        "rounds": 1,
        "steps_per_round": 1,
        "prompts_per_step": 1,
        "group_size": 2,
    }
    with pytest.raises(ValueError, match="components change the reward of the whole response"):
        check_rl(RlConfig.model_validate(rl), components)
    rl["algorithm"] = {"name": "grpo_process", "credit_outcome": 1}
    check_rl(RlConfig.model_validate(rl), components)
