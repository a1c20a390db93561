"""Rows of episodes: their tokens in the order drawn, and all that is compared or discounted over whole episodes."""

import dataclasses
import random

import pytest
import torch

from tests.rl.rewarded import parts_of
from verizero.pipeline.algorithms.base import load_algorithm
from verizero.pipeline.rl.credit import AdvantageInputs, compute_advantages
from verizero.pipeline.rl.episodes import Shares, episode_layout, num_forked, sequences_of, shares_of
from verizero.pipeline.rl.loss import Counts, count_denominators

NAN = float("nan")
WIDTH = 16


@dataclasses.dataclass
class Scene:
    """Rows of episodes in a shuffled batch, NaN outside of what trains, and the same as lists in the order drawn."""

    inputs: AdvantageInputs
    places: list[list[tuple[int, int]]]
    """By episode: (row, column) of each trained token, in the order drawn."""
    turns: list[list[int]]
    """By episode: the turn of each token."""

    def lists(self, x):
        return [[float(x[row, column]) for row, column in own] for own in self.places]


def scene(seed, num=6, turn_rewards=False):
    """`num` episodes, in groups of three, of one to four turns in one or two rows."""
    r = random.Random(seed)
    rows = []  # episode, (turn, columns) of each turn
    for e in range(num):
        left, number = r.randint(1, 4), 0
        while left:
            own = r.randint(1, left)
            columns = sorted(r.sample(range(1, WIDTH), 2 * own + r.randint(0, 3)))
            cuts = sorted(r.sample(range(1, len(columns)), own - 1))
            pieces = [columns[a:b] for a, b in zip([0, *cuts], [*cuts, len(columns)], strict=True)]
            rows.append((e, [(number + k, piece) for k, piece in enumerate(pieces)]))
            number, left = number + own, left - own
    r.shuffle(rows)
    mask, turns = torch.zeros(len(rows), WIDTH), torch.full((len(rows), WIDTH), -1)
    for i, (_, own_turns) in enumerate(rows):
        for number, columns in own_turns:
            mask[i, columns] = 1
            turns[i, columns] = number
    # By turn, then column: a turn lies in one row.
    drawn = [
        sorted((t, c, i) for i, (own, ts) in enumerate(rows) if own == e for t, cs in ts for c in cs)
        for e in range(num)
    ]
    rewards = [r.choice([0.0, 0.5, 1.0, -0.5]) for _ in range(num)]
    of_row = [e for e, _ in rows]

    def noise():
        x = torch.tensor([[r.gauss(0, 1) for _ in range(WIDTH)] for _ in rows], dtype=torch.float64)
        return torch.where(mask > 0, x, torch.full_like(x, NAN))

    longest = 1 + max(t for own in drawn for t, _, _ in own)
    table = [[r.choice([NAN, 0.0, 1.0, -0.5]) for _ in range(longest)] for _ in range(num)]
    inputs = AdvantageInputs(
        torch.tensor([rewards[e] for e in of_row], dtype=torch.float64),
        torch.tensor([e // 3 for e in of_row]),
        mask,
        old_logprobs=noise(),
        ref_logprobs=noise(),
        values=noise(),
        greedy_rewards=torch.tensor([0.25 * (e // 3) for e in of_row], dtype=torch.float64),
        score_norms=noise() ** 2,
        episode_ids=torch.tensor([10 * e for e in of_row]),
        turn_ids=turns,
        turn_rewards=torch.tensor(table, dtype=torch.float64) if turn_rewards else None,
    )
    return Scene(inputs, [[(i, c) for _, c, i in own] for own in drawn], [[t for t, _, _ in own] for own in drawn])


def test_tokens_are_joined_in_the_order_drawn_and_spread_back():
    s = scene(1)
    where = episode_layout(s.inputs.episode_ids, s.inputs.turn_ids, s.inputs.response_mask > 0)
    x = torch.arange(len(s.inputs.rewards) * WIDTH, dtype=torch.float64).view(-1, WIDTH)
    joined = where.joined(x)
    for e, own in enumerate(s.lists(x)):
        assert joined[e][where.mask[e]].tolist() == own
        assert bool((joined[e][~where.mask[e]] == 0).all())
    assert torch.equal(where.spread(joined), x * s.inputs.response_mask)
    assert [int(i) for i in where.last_row] == [own[-1][0] for own in s.places]
    assert num_forked(s.inputs.episode_ids) == sum(len({i for i, _ in own}) > 1 for own in s.places) > 0


def test_one_row_counts_an_episode_wherever_its_rows_lie():
    s = scene(2)
    mask = s.inputs.response_mask > 0
    shares = shares_of(episode_layout(s.inputs.episode_ids, s.inputs.turn_ids, mask))
    assert int(shares.counts.sum()) == len(s.places)
    for own in s.places:
        assert {float(shares.lengths[i]) for i, _ in own} == {float(len(own))}
    parts, truncated = load_algorithm("grpo", {"overlong_filter": True})[1], s.inputs.episode_ids // 10 % 2 == 0
    for cut in (1, 3):
        counts = [
            Counts(*count_denominators(parts, mask[rows], truncated[rows], shares.at(rows)).tolist()).sequences
            for rows in torch.arange(len(mask)).split(cut)
        ]
        assert sum(counts) == 3  # the other three are truncated
    empty = Shares(torch.zeros(2), torch.tensor([True, False]))
    assert sequences_of(torch.tensor([[False], [True]]), empty).tolist() == [False, False]


def episodes_alone(s):
    """Each episode as a single response in one row without holes, from the lists."""
    longest = max(map(len, s.places))
    x = s.inputs
    first = [own[-1][0] for own in s.places]

    def packed(values):
        return torch.tensor([own + [NAN] * (longest - len(own)) for own in s.lists(values)], dtype=torch.float64)

    return AdvantageInputs(
        x.rewards[first],
        x.group_ids[first],
        torch.tensor([[1.0] * len(own) + [0.0] * (longest - len(own)) for own in s.places]),
        packed(x.old_logprobs),
        packed(x.ref_logprobs),
        packed(x.values),
        x.greedy_rewards[first],
        None,
        packed(x.score_norms),
    )


EVERY = [
    ({"name": "group_norm"}, {}),
    ({"name": "group_norm", "std": "batch"}, {}),
    ("max_rl", {}),
    ("optimal_baseline", {}),
    ("best_of_k", {}),
    ("greedy_baseline", {}),
    ("group_mean_batch_norm", {}),
    ("reward_to_go_norm", {"kl_in": "reward", "kl_form": "k1", "kl_coef": 0.1}),
    ("optimal_token_baseline", {}),
    ("gae", {"critic": {"shared": True, "loss_coef": 1.0, "clip": None, "warmup_steps": 0}}),
    ("none", {"kl_in": "reward", "kl_form": "k3", "kl_coef": 0.1}),
]


@pytest.mark.parametrize(("advantage", "rest"), EVERY, ids=str)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_advantage_is_that_of_episodes_as_responses(seed, advantage, rest):
    s, parts = scene(seed), parts_of(advantage, **rest)
    if parts.needs_no_negative:
        s = dataclasses.replace(s, inputs=dataclasses.replace(s.inputs, rewards=s.inputs.rewards.abs()))
    alone = compute_advantages(parts, episodes_alone(s))
    found = compute_advantages(parts, s.inputs)
    for e, own in enumerate(s.lists(found.advantages)):
        assert own == alone.advantages[e, : len(own)].tolist()
        if alone.returns is not None:
            assert s.lists(found.returns)[e] == alone.returns[e, : len(own)].tolist()
    assert bool((found.advantages[s.inputs.response_mask == 0] == 0).all())
    assert found.stats == alone.stats
    assert found.stats["response/length_mean"] == pytest.approx(sum(map(len, s.places)) / len(s.places))
