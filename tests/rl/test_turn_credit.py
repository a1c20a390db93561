"""Credit by turn and by step against slow doubles, and their rules."""

import dataclasses
import math
import random
import statistics
from dataclasses import replace

import pytest
import torch

from tests.oracles import advantages as advantages_oracle
from tests.oracles import rl as oracle
from tests.oracles.advantages import group_norm, process
from tests.rl.test_episodes import scene
from tests.train.batches import groups_of
from verizero.pipeline.algorithms.base import load_algorithm
from verizero.pipeline.rl.credit import AdvantageInputs, compute_advantages
from verizero.pipeline.scoring.select import classify_group, select
from verizero.pipeline.train.collate import collate, turn_table


def turn_values(s):
    """By episode, then turn: the indices of its tokens among the episode's."""
    return [[[t for t, k in enumerate(own) if k == turn] for turn in range(1 + max(own))] for own in s.turns]


def rewards_of(s):
    """By episode: the environment's rewards for the turns that it has, 0 where there is none."""
    table = s.inputs.turn_rewards.tolist()
    return [
        [0.0 if math.isnan(r) else r for r in own[: 1 + max(turns)]] for own, turns in zip(table, s.turns, strict=True)
    ]


def outcomes(s):
    return [float(s.inputs.rewards[own[-1][0]]) for own in s.places]


def divisor(values, std):
    """What the part of a turn is divided by; any number for equal returns, whose part is 0."""
    return statistics.stdev(values) + 1e-6 if std == "group" and len(set(values)) > 1 else 1.0


@pytest.mark.parametrize("std", ["none", "group"])
@pytest.mark.parametrize(("coef", "outcome", "gamma"), [(1.0, 1.0, 1.0), (0.5, 0.0, 0.9), (2.0, 0.3, 0.0)])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_credit_of_turns_is_its_formula(seed, coef, outcome, gamma, std):
    s = scene(seed, turn_rewards=True)
    params = {"credit": "turns", "credit_coef": coef, "credit_outcome": outcome, "credit_gamma": gamma}
    params |= {"credit_std": std}
    found = compute_advantages(load_algorithm("dr_grpo", params)[1], s.inputs)
    to_go = [advantages_oracle.reward_to_go(own, gamma) for own in rewards_of(s)]
    of_episode = outcomes(s)
    for e, own in enumerate(s.lists(found.advantages)):
        group = [j for j in range(len(to_go)) if j // 3 == e // 3]
        mean = oracle.mean([of_episode[j] for j in group])
        for t, k in enumerate(s.turns[e]):
            # An episode that ended before turn k is in no mean of it.
            others = [to_go[j][k] for j in group if len(to_go[j]) > k]
            part = (to_go[e][k] - oracle.mean(others)) / divisor(others, std)
            wanted = outcome * (of_episode[e] - mean) + coef * part
            assert own[t] == pytest.approx(wanted, rel=1e-12, abs=1e-12)


def test_the_share_of_turns_with_a_reward_is_told():
    s = scene(1, turn_rewards=True)
    table = [own[: 1 + max(t)] for own, t in zip(s.inputs.turn_rewards.tolist(), s.turns, strict=True)]
    known = [not math.isnan(r) for own in table for r in own]
    stats = compute_advantages(load_algorithm("grpo", {"credit": "turns"})[1], s.inputs).stats
    assert stats["credit/rewarded"] == pytest.approx(sum(known) / len(known))
    assert "credit/rewarded" not in compute_advantages(load_algorithm("dr_grpo")[1], scene(1).inputs).stats


@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_gae_over_turns_is_its_definition(kl):
    """A turn is one step: V at its first token, the rewards of all its tokens, one advantage for all of them."""
    s = scene(5, turn_rewards=True)
    numbers = {"gamma": 0.9, "lam": 0.7, "whiten": False}
    params = {"credit": "turn_gae", "credit_coef": 0.5, "kl_coef": kl, "kl_form": "k1", **numbers}
    parts = load_algorithm("ppo", params)[1]
    found = compute_advantages(parts, s.inputs)
    x = s.inputs
    values, old, ref = s.lists(x.values), s.lists(x.old_logprobs), s.lists(x.ref_logprobs)
    for e, turns in enumerate(turn_values(s)):
        rewards = [
            0.5 * r - kl * sum(old[e][t] - ref[e][t] for t in own)
            for r, own in zip(rewards_of(s)[e], turns, strict=True)
        ]
        rewards[-1] += outcomes(s)[e]
        advantages, returns = advantages_oracle.gae(rewards, [values[e][own[0]] for own in turns], 0.0, 0.9, 0.7)
        for k, own in enumerate(turns):
            for t in own:
                assert s.lists(found.advantages)[e][t] == pytest.approx(advantages[k], rel=1e-10)
                assert s.lists(found.returns)[e][t] == pytest.approx(returns[k], rel=1e-10)


def test_process_credit_of_episodes_without_rewards_of_turns_is_that_of_the_outcome():
    x = scene(2, turn_rewards=True).inputs
    x = dataclasses.replace(x, turn_rewards=torch.full_like(x.turn_rewards, math.nan))
    found, wanted = (compute_advantages(load_algorithm(name)[1], x).advantages for name in ("grpo_process", "grpo"))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


Steps = tuple[tuple[int, float], ...]


def random_steps(draw, length):
    """Up to four steps, some without a token of their own; the last one ends with the response."""
    ends = [*sorted(draw.choices(range(1, length + 1), k=draw.randint(0, 3))), length]
    return tuple((end, draw.choice([0.0, 1.0, 0.5, -2.0])) for end in ends)


def stepped(seed, share=0.8):
    """Groups in which that share of the responses has steps."""
    draw = random.Random(seed)

    def with_steps(m):
        has = m.reward is not None and draw.random() < share
        return replace(m, steps=random_steps(draw, m.rollout.num_sampled)) if has else m

    return [replace(g, members=tuple(map(with_steps, g.members))) for g in groups_of(seed=seed)]


def rewarded(groups):
    return [(g, m) for g, group in enumerate(groups) for m in group.members if m.reward is not None]


def inputs_of(groups):
    batch = collate(groups, 0)
    mask = batch.response_mask.double()
    return AdvantageInputs(
        batch.rewards, batch.group_ids, mask, turn_ids=batch.turn_ids, turn_rewards=turn_table(groups)
    )


def by_rows(advantages, mask):
    assert bool((advantages[mask == 0] == 0).all())
    return [row[own > 0].tolist() for row, own in zip(advantages, mask, strict=True)]


@pytest.mark.parametrize(("coef", "outcome"), [(1.0, 0.0), (0.5, 0.3)])
@pytest.mark.parametrize("seed", range(4))
def test_advantages_are_the_papers_formula(seed, coef, outcome):
    groups = stepped(seed)
    parts = load_algorithm("grpo_process", {"credit_coef": coef, "credit_outcome": outcome})[1]
    inputs = inputs_of(groups)
    found = by_rows(compute_advantages(parts, inputs).advantages, inputs.response_mask)
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


def test_a_group_whose_steps_alone_differ_is_informative_for_credit_by_turn():
    (group,) = groups_of(num=1, size=2, lost=False)
    members = tuple(replace(m, reward=0.0, steps=((1, float(i)),)) for i, m in enumerate(group.members))
    group = replace(group, members=members)
    assert classify_group(group) != "kept"
    assert select([group], "informative", by_turns=True)[1]["kept"] == 1
    flat = replace(group, members=tuple(replace(m, steps=((1, 0.0),)) for m in members))
    assert select([flat], "informative", by_turns=True)[1]["kept"] == 0
