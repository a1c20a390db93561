"""Process supervision against a slow double of the paper, and where it must be outcome supervision."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.oracles.advantages import group_norm, process
from tests.train.batches import groups_of
from verizero.pipeline.algorithms.base import load_algorithm
from verizero.pipeline.config.rl import RlConfig, check_rl
from verizero.pipeline.config.scoring import ScoringConfig
from verizero.pipeline.errors import ConfigError
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


def test_by_hand() -> None:
    """Rewards 1 0 and 0 0 0: mean 1/5, deviation sqrt((0.8^2 + 4 * 0.2^2) / 4) = sqrt(0.2)."""
    (group,) = groups_of(num=1, size=2, lost=False)
    first, second = group.members
    ids = {"response_ids": (5, 6, 7), "logprobs": (-1.0, -1.0, -1.0)}
    first = replace(first, rollout=replace(first.rollout, **ids), steps=((2, 1.0), (3, 0.0)))
    second = replace(second, rollout=replace(second.rollout, **ids), steps=((1, 0.0), (2, 0.0), (3, 0.0)))
    inputs = inputs_of([replace(group, members=(first, second))])
    found = compute_advantages(load_algorithm("grpo_process")[1], inputs)
    right, wrong = 0.8 / (0.2**0.5 + 1e-6), -0.2 / (0.2**0.5 + 1e-6)
    wanted = [[right + wrong, right + wrong, wrong], [3 * wrong, 2 * wrong, wrong]]
    assert by_row(found.advantages, inputs.response_mask) == [pytest.approx(row) for row in wanted]
    assert found.stats["credit/rewarded"] == 1.0


@pytest.mark.parametrize("seed", range(3))
def test_without_steps_it_is_outcome_supervision(seed: int) -> None:
    """Also where each response is given as one step; and a shift of all rewards of steps changes nothing."""
    groups = groups_of(seed=seed)
    inputs = inputs_of(groups)
    wanted = compute_advantages(load_algorithm("grpo")[1], inputs).advantages
    parts = load_algorithm("grpo_process")[1]
    torch.testing.assert_close(compute_advantages(parts, inputs).advantages, wanted, rtol=1e-12, atol=1e-12)
    one = [
        replace(
            g,
            members=tuple(
                m if m.reward is None else replace(m, steps=((m.rollout.num_sampled, m.reward + 3.0),))
                for m in g.members
            ),
        )
        for g in groups
    ]
    found = compute_advantages(parts, inputs_of(one)).advantages
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def test_a_group_whose_steps_alone_differ_is_informative_for_credit_by_turn() -> None:
    (group,) = groups_of(num=1, size=2, lost=False)
    members = tuple(replace(m, reward=0.0, steps=((1, float(i)),)) for i, m in enumerate(group.members))
    group = replace(group, members=members)
    assert classify_group(group) != "kept"
    assert select([group], "informative", by_turns=True)[1]["kept"] == 1
    flat = replace(group, members=tuple(replace(m, steps=((1, 0.0),)) for m in members))
    assert select([flat], "informative", by_turns=True)[1]["kept"] == 0


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"kl_in": "reward", "kl_form": "k1"}, "kl_in changes the reward of the whole response"),
        ({"overlong_buffer": 0.5}, "overlong_buffer changes"),
        ({"reward_clip": 1.0}, "reward_clip changes"),
        ({"credit": "turns", "overlong_buffer": 0.5}, "overlong_buffer changes .* credit 'turns'"),
        ({"credit_gamma": 0.5}, "credit_gamma is 0.5 but credit 'process'"),
        ({"credit_std": "group"}, "credit_std is 'group' but credit 'process'"),
    ],
)
def test_what_it_would_leave_out_is_refused(params: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_algorithm("grpo_process", params)


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
