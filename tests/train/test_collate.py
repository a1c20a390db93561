"""Groups to tensors, rows to micro-batches, and work to ranks: every row once, as many micro-batches everywhere."""

import dataclasses
import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.train.batches import groups_of
from verizero.pipeline.errors import RunError
from verizero.pipeline.models.runs import ALIKE
from verizero.pipeline.run.rollouts import share_of, sum_of_tallies
from verizero.pipeline.scoring.score import GradingTally
from verizero.pipeline.train.collate import (
    MIN_FILLED_SHARE,
    collate,
    idle_micro_batch,
    micro_batches,
    rank_micro_batches,
    rows_of,
)
from verizero.pipeline.train.ranks import ALONE, Ranks, collective_errors, ranks_of_environment
from verizero.pipeline.types import Group, Prompt

LENGTHS = st.lists(st.integers(1, 50), max_size=40)


@pytest.mark.run
@settings(max_examples=200)
@given(LENGTHS, st.integers(1, 200))
def test_micro_batches_hold_every_row_once_within_the_budget_longest_first(lengths, budget):
    found = micro_batches(lengths, budget)
    rows = [i for piece in found for i in piece]
    assert sorted(rows) == list(range(len(lengths)))
    assert [lengths[i] for i in rows] == sorted(lengths, reverse=True)
    for piece in found:
        assert len(piece) * max(lengths[i] for i in piece) <= budget or len(piece) == 1
    for piece, after in itertools.pairwise(found):  # none ended without a reason
        longest, next_row = lengths[piece[0]], lengths[after[0]]
        no_room = (len(piece) + 1) * longest > budget
        would_pad = next_row < ALIKE * longest and len(piece) * longest >= MIN_FILLED_SHARE * budget
        assert no_room or would_pad


def test_answers_of_very_different_length_are_padded_little():
    rng = random.Random(0)
    lengths = [6 + min(64, 1 + int(rng.expovariate(1 / 16))) for _ in range(256)]
    found = micro_batches(lengths, 4608)
    padded = sum(len(piece) * max(lengths[i] for i in piece) for piece in found)
    assert padded < 1.25 * sum(lengths)
    assert len(found) <= 8


def test_equal_lengths_keep_their_order():
    assert micro_batches([3, 5, 3, 5, 3], 10) == [[1, 3], [0, 2, 4]]


def test_a_member_without_reward_is_left_out_and_a_group_of_none_keeps_its_number():
    groups = groups_of(3, 3, lost=False)
    none = tuple(dataclasses.replace(m, reward=None) for m in groups[1].members)
    batch = collate([groups[0], dataclasses.replace(groups[1], members=none), groups[2]], 0)
    assert batch.group_ids.tolist() == [0, 0, 0, 2, 2, 2]


def test_nothing_to_train_on_is_an_error():
    empty = Group(Prompt("p", "?", "exact", "x"), ())
    with pytest.raises(ValueError, match="nothing to train on"):
        collate([empty], 0)


@settings(max_examples=40)
@given(st.data())
def test_rows_of_are_those_rows_without_common_padding(data):
    batch = collate(groups_of(3, 4, data.draw(st.integers(0, 999))), 0)
    batch = dataclasses.replace(batch, extras={**batch.extras, "values": torch.rand(batch.input_ids.shape)})
    total = len(batch.rewards)
    rows = data.draw(st.lists(st.integers(0, total - 1), min_size=1, max_size=total, unique=True))
    part = rows_of(batch, rows)
    assert int(part.attention_mask[:, -1].sum()) > 0
    width = part.input_ids.shape[1]
    assert int(batch.attention_mask[rows][:, width:].sum()) == 0
    for name in ("input_ids", "attention_mask", "response_mask", "rollout_logprobs"):
        assert torch.equal(getattr(part, name), getattr(batch, name)[rows][:, :width])
    for name in ("rewards", "group_ids", "truncated"):
        assert torch.equal(getattr(part, name), getattr(batch, name)[rows])
    assert torch.equal(part.extras["values"], batch.extras["values"][rows][:, :width])
    assert torch.equal(part.extras["policy_version"], batch.extras["policy_version"][rows])


def test_rewards_that_differ_by_little_beside_their_size_stay_apart():
    (group,) = groups_of(1, 2)
    members = [dataclasses.replace(m, reward=1e6 + 0.01 * i) for i, m in enumerate(group.members)]
    rewards = collate([dataclasses.replace(group, members=tuple(members))], 0, "cpu").rewards
    assert float(rewards.diff()[0]) == pytest.approx(0.01, rel=1e-6)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 200), st.integers(1, 5))
def test_every_row_is_dealt_once_and_all_ranks_have_as_many_micro_batches(lengths, budget, size):
    hands = [rank_micro_batches(lengths, budget, rank, size) for rank in range(size)]
    assert sorted(i for pieces, _ in hands for piece in pieces for i in piece) == list(range(len(lengths)))
    assert len({len(pieces) + idle for pieces, idle in hands}) == 1
    assert min(idle for _, idle in hands) == 0
    loads = [sum(lengths[i] for piece in pieces for i in piece) for pieces, _ in hands]
    assert max(loads) - min(loads) <= max(lengths), "the last row that the fullest rank took went to the emptiest"


def test_one_rank_has_the_micro_batches_of_a_single_process():
    lengths = [3, 9, 4, 9, 1, 7]
    assert rank_micro_batches(lengths, 12, 0, 1) == (micro_batches(lengths, 12), 0)


def test_an_idle_micro_batch_trains_on_nothing():
    batch = collate(groups_of(), 0)
    idle = idle_micro_batch(batch)
    assert idle.input_ids.shape[0] == 1
    assert idle.input_ids.shape[1] == int(batch.attention_mask.sum(1).min())
    assert float(idle.response_mask.sum()) == 0


def prompts(names):
    return [Prompt(n, "?", "exact", "x") for n in names]


def test_a_prompt_that_comes_twice_goes_to_one_rank_both_times():
    everything = prompts("abcadb")
    shares = [share_of(Ranks(r, 2), everything) for r in (0, 1)]
    assert ["".join(p.id for p in s.prompts) for s in shares] == ["aca", "bdb"]
    assert sorted(i for s in shares for i in s.indices) == list(range(6))
    assert [everything[i] for i in shares[1].indices] == shares[1].prompts
    assert share_of(ALONE, everything).prompts == everything


def test_some_ranks_have_no_prompt_where_there_are_more_ranks():
    assert [len(share_of(Ranks(r, 3), prompts("ab")).prompts) for r in range(3)] == [1, 1, 0]


def test_tallies_add_but_for_the_time_that_went_by_beside():
    found = sum_of_tallies(
        [GradingTally({"graded": 2}, 1, 3.0, 2.0), GradingTally({"graded": 1, "timeout": 4}, 0, 1.0, 5.0)]
    )
    assert found == GradingTally({"graded": 3, "timeout": 4}, 1, 4.0, 5.0)


def test_alone_everything_stays_as_it_is():
    values = torch.arange(3.0)
    assert ALONE.all_reduce(values) is values
    assert ALONE.gather("x") == ["x"]
    assert ALONE.decide_on_first(lambda: 4) == 4
    assert ALONE.any(True)
    assert not ALONE.any(False)


def test_a_place_outside_the_group_is_refused():
    assert ranks_of_environment({"RANK": "1", "WORLD_SIZE": "2"}) == Ranks(1, 2)
    assert ranks_of_environment({}) == ALONE
    with pytest.raises(RunError, match="RANK=2 is not among WORLD_SIZE=2"):
        ranks_of_environment({"RANK": "2", "WORLD_SIZE": "2"})


def test_a_gpu_that_is_full_is_not_taken_for_a_rank_that_does_not_answer():
    with pytest.raises(torch.OutOfMemoryError, match="tried to allocate 2 GiB"), collective_errors():
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")
    with pytest.raises(RunError, match="gets no answer from the others"), collective_errors():
        raise RuntimeError("NCCL timeout")
