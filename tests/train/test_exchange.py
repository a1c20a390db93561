"""Responses come whole to the ranks that train on them, and every update stays what it is where all ranks hold all."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.train import episodes
from tests.train.batches import groups_of
from tests.train.rank_group import run
from verizero.pipeline.train.collate import deal, owners
from verizero.pipeline.train.exchange import held_once, moved, row_lengths, whole_on_first, with_own
from verizero.pipeline.train.ranks import ALONE

Found = Callable[[int], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def found() -> Found:
    """What each of so many ranks found, once for all tests."""
    return functools.cache(functools.partial(run, "tests.train.exchange_rank"))


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 200), st.integers(1, 5))
def test_the_owners_are_those_to_whom_rows_are_dealt(lengths: list[int], budget: int, size: int) -> None:
    for rank, own in enumerate(owners(lengths, size)):
        assert sorted(i for piece in deal(lengths, budget, rank, size)[0] for i in piece) == sorted(own)


def test_alone_nothing_moves() -> None:
    groups = groups_of()
    lengths, group_of = row_lengths(groups)
    assert with_own(ALONE, groups, lengths, [range(len(lengths))]) == groups
    assert moved(ALONE, groups, [set()]) == whole_on_first(ALONE, groups) == held_once(ALONE, groups) == groups
    assert sorted(set(group_of)) == [0, 1, 2, 3]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 999))
def test_lengths_are_those_of_the_rows_of_the_batch(seed: int) -> None:
    from verizero.pipeline.train.collate import collate

    for groups in (groups_of(3, 4, seed), episodes.episodes_of(3, 4, seed)):
        batch = collate(groups, 0)
        lengths, group_of = row_lengths(groups)
        assert lengths == batch.attention_mask.sum(1).tolist()
        assert group_of == batch.group_ids.tolist()


@pytest.mark.integration
@pytest.mark.parametrize("size", [2, 4])
def test_updates_are_to_the_bit_those_of_ranks_that_hold_everything(found: Found, size: int) -> None:
    for rank in found(size):
        apart = rank["updates"]["everything"]
        assert apart == dict.fromkeys(apart, 0.0)


@pytest.mark.integration
@pytest.mark.parametrize("size", [2, 4])
def test_updates_are_those_of_one_process_to_rounding(found: Found, size: int) -> None:
    for rank in found(size):
        # Ranks compute shared prompts with other rows than one process does, and the policy's norms are in float32.
        apart = rank["updates"]["one process"]
        far = {name: off for name, off in apart.items() if off >= (1e-7 if "shared" in name else 1e-9)}
        assert far == {}


@pytest.mark.integration
@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_receives_what_it_trains_on_and_little_more(found: Found, size: int) -> None:
    ranks = [rank["received"] for rank in found(size)]
    assert sorted(tuple(place) for rank in ranks for place in rank["holds"]) == [
        (g, m) for g in range(8) for m in range(4)
    ]
    for number, rank in enumerate(ranks):
        assert rank["decided"] < 0.03
        # Its share of all responses, less those that it sampled itself.
        assert rank["trained on"] < 1 / size
        assert rank["shown"] < (1 if number == 0 else 0.01)
        assert rank["whole"] > 0.9 * (1 - 1 / size), "all responses to all ranks, which the counter must show"
        assert rank["first is whole"] is (number == 0)
        assert rank["again is whole"]
        assert rank["equal"]
        assert all(rank["nothing"])
        assert rank["empty"]
        assert rank["stays"]
    held = [sum(column) for column in zip(*(rank["restored"] for rank in ranks), strict=True)]
    assert held == [4] * 8, "each group of a checkpoint is whole on one rank"
    assert all(sum(rank["restored"]) == 32 // size for rank in ranks)


@pytest.mark.integration
@pytest.mark.parametrize("size", [2, 4])
def test_records_of_sampling_come_with_the_tokens(found: Found, size: int) -> None:
    assert all(rank["records"] == {"held": True, "micros": True} for rank in found(size))


@pytest.mark.integration
def test_ranks_that_hold_sequences_together_get_the_same_rows(found: Found) -> None:
    ranks = [rank["sets"] for rank in found(4)]
    assert ranks[0]["holds"] == ranks[1]["holds"]
    assert ranks[2]["holds"] == ranks[3]["holds"]
    assert not {tuple(p) for p in ranks[0]["holds"]} & {tuple(p) for p in ranks[2]["holds"]}
    assert all(rank["right"] for rank in ranks)
    assert sum(len(rank["holds"]) for rank in ranks) == 2 * 23
