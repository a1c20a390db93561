"""Groups to tensors, and rows to micro-batches."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.train.batches import groups_of
from verizero.pipeline.errors import DataError
from verizero.pipeline.models.widths import ALIKE
from verizero.pipeline.train.collate import MIN_FILLED_SHARE, collate, micro_batches, padded_ids, rows_of
from verizero.pipeline.types import Group, Prompt

LENGTHS = st.lists(st.integers(1, 50), max_size=40)


@pytest.mark.integration
@settings(max_examples=200, deadline=None)
@given(LENGTHS, st.integers(1, 200))
def test_micro_batches_hold_every_row_once_within_the_budget_longest_first(lengths: list[int], budget: int) -> None:
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


def test_answers_of_very_different_length_are_padded_little() -> None:
    rng = random.Random(0)
    lengths = [6 + min(64, 1 + int(rng.expovariate(1 / 16))) for _ in range(256)]
    found = micro_batches(lengths, 4608)
    padded = sum(len(piece) * max(lengths[i] for i in piece) for piece in found)
    assert padded < 1.25 * sum(lengths)
    assert len(found) <= 8


def test_equal_lengths_keep_their_order() -> None:
    assert micro_batches([3, 5, 3, 5, 3], 10) == [[1, 3], [0, 2, 4]]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(2, 5), st.integers(0, 10_000))
def test_a_batch_reads_back_as_its_rollouts(num: int, size: int, seed: int) -> None:
    groups = groups_of(num, size, seed)
    batch = collate(groups, pad_id=0)
    members = [(g, m) for g, group in enumerate(groups) for m in group.members if m.reward is not None]
    assert len(batch.rewards) == len(members)
    longest = max(len(m.rollout.prompt_ids) + len(m.rollout.response_ids) for _, m in members)
    assert batch.input_ids.shape[1] == longest
    for i, (g, m) in enumerate(members):
        r, n = m.rollout, len(m.rollout.prompt_ids)
        end = n + len(r.response_ids)
        assert batch.input_ids[i].tolist() == [*r.prompt_ids, *r.response_ids, *[0] * (longest - end)]
        assert batch.attention_mask[i].tolist() == [1] * end + [0] * (longest - end)
        assert batch.response_mask[i].tolist() == [0.0] * n + [1.0] * (end - n) + [0.0] * (longest - end)
        assert batch.rollout_logprobs[i, n:end].tolist() == pytest.approx(r.logprobs, abs=1e-6)
        assert float(batch.rollout_logprobs[i].abs().sum()) == pytest.approx(-sum(r.logprobs), rel=1e-5)
        assert float(batch.rewards[i]) == m.reward
        assert int(batch.group_ids[i]) == g
        assert bool(batch.truncated[i]) == (r.finish_reason == "length")
        assert int(batch.extras["policy_version"][i]) == r.policy_version


def test_a_member_without_reward_is_left_out_and_a_group_of_none_keeps_its_number() -> None:
    groups = groups_of(3, 3, lost=False)
    none = tuple(dataclasses.replace(m, reward=None) for m in groups[1].members)
    batch = collate([groups[0], dataclasses.replace(groups[1], members=none), groups[2]], 0)
    assert batch.group_ids.tolist() == [0, 0, 0, 2, 2, 2]


def test_nothing_to_train_on_is_an_error() -> None:
    empty = Group(Prompt("p", "?", "exact", "x"), ())
    with pytest.raises(ValueError, match="nothing to train on"):
        collate([empty], 0)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_rows_of_are_those_rows_without_common_padding(data: st.DataObject) -> None:
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


def test_padded_ids_are_padded_on_the_right() -> None:
    assert padded_ids([[1, 2, 3], [4]], 9).tolist() == [[1, 2, 3], [4, 9, 9]]


def test_a_batch_is_its_rows_written_out_one_by_one() -> None:
    """Bit for bit, in the types that training takes."""
    groups = groups_of(5, 3)
    members = [(g, m) for g, x in enumerate(groups) for m in x.members if m.reward is not None]
    batch = collate(groups, 7)
    width = max(len(m.rollout.prompt_ids) + len(m.rollout.response_ids) for _, m in members)
    for row, (_, m) in enumerate(members):
        prompt, response = m.rollout.prompt_ids, m.rollout.response_ids
        rest = width - len(prompt) - len(response)
        assert batch.input_ids[row].tolist() == [*prompt, *response, *([7] * rest)]
        assert batch.attention_mask[row].tolist() == [1] * (width - rest) + [0] * rest
        assert batch.response_mask[row].tolist() == [0.0] * len(prompt) + [1.0] * len(response) + [0.0] * rest
        logprobs = torch.tensor([0.0] * len(prompt) + list(m.rollout.logprobs) + [0.0] * rest, dtype=torch.float32)
        assert torch.equal(batch.rollout_logprobs[row], logprobs)
    assert batch.input_ids.dtype == batch.attention_mask.dtype == torch.int64
    assert batch.response_mask.dtype == batch.rollout_logprobs.dtype == torch.float32


def test_a_response_without_all_of_its_logprobs_is_refused() -> None:
    group = groups_of(1, 2)[0]
    short = dataclasses.replace(group.members[0].rollout, logprobs=(-1.0,) * 30)
    members = (dataclasses.replace(group.members[0], rollout=short), *group.members[1:])
    with pytest.raises(DataError, match=r"response 0 to 'p0' has \d+ tokens and 30 log-probs"):
        collate([dataclasses.replace(group, members=members)], 0)


def test_rewards_that_differ_by_little_beside_their_size_stay_apart() -> None:
    (group,) = groups_of(1, 2)
    members = [dataclasses.replace(m, reward=1e6 + 0.01 * i) for i, m in enumerate(group.members)]
    rewards = collate([dataclasses.replace(group, members=tuple(members))], 0, "cpu").rewards
    assert float(rewards.diff()[0]) == pytest.approx(0.01, rel=1e-6)
