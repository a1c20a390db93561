"""All ranks have the same responses, records come to the rank that trains on a row, and updates are those of one."""

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
from verizero.pipeline.train.collate import collate, rank_micro_batches, row_lengths, rows_of_ranks

Found = Callable[[int], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def found() -> Found:
    """What each of so many ranks found, once for all tests."""
    return functools.cache(functools.partial(run, "tests.train.records_rank"))


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 200), st.integers(1, 5))
def test_the_owners_are_those_to_whom_rows_are_dealt(lengths: list[int], budget: int, size: int) -> None:
    for rank, own in enumerate(rows_of_ranks(lengths, size)):
        assert sorted(i for piece in rank_micro_batches(lengths, budget, rank, size)[0] for i in piece) == sorted(own)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 999))
def test_lengths_are_those_of_the_rows_of_the_batch(seed: int) -> None:
    for groups in (groups_of(3, 4, seed), episodes.episodes_of(3, 4, seed)):
        batch = collate(groups, 0)
        lengths, group_of = row_lengths(groups)
        assert lengths == batch.attention_mask.sum(1).tolist()
        assert group_of == batch.group_ids.tolist()


@pytest.mark.integration
@pytest.mark.parametrize("size", [2, 4])
def test_updates_are_those_of_one_process_to_rounding(found: Found, size: int) -> None:
    for rank in found(size):
        # Ranks compute shared prompts with other rows than one process does, and the policy's norms are in float32.
        apart = rank["updates"]
        assert len(apart) == 11
        far = {name: off for name, off in apart.items() if off >= (1e-7 if "shared" in name else 1e-9)}
        assert far == {}


@pytest.mark.integration
@pytest.mark.parametrize("size", [2, 4])
def test_all_ranks_have_the_responses_that_one_process_has(found: Found, size: int) -> None:
    assert all(rank["same"] == {"plain": True, "recorded": True} for rank in found(size))


@pytest.mark.integration
@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_receives_the_records_of_its_rows_and_no_others(found: Found, size: int) -> None:
    ranks = [rank["received"] for rank in found(size)]
    assert all(0 < rank["gathered"] < 0.15 for rank in ranks), "tokens and sizes, which the counter must show"
    # Each row trains on one rank; what that rank sampled itself does not travel.
    assert all(rank["trained on"] < 1 / size for rank in ranks)
    assert sum(rank["trained on"] for rank in ranks) > 0.2
    assert sorted(place for rank in ranks for place in rank["arrived"]) == sorted(
        place for number, rank in enumerate(ranks) for place in rank["wanted"] if place not in ranks[number]["sampled"]
    )
    assert [rank["on first"] for rank in ranks] == [True] + [False] * (size - 1)
    for rank in ranks:
        assert all(rank["nothing"])
        assert rank["empty"]


@pytest.mark.integration
@pytest.mark.parametrize("size", [2, 4])
def test_micro_batches_have_the_records_that_they_have_where_all_ranks_have_all(found: Found, size: int) -> None:
    assert all(rank["records"] == {"some": True, "micros": True} for rank in found(size))


@pytest.mark.integration
def test_ranks_that_hold_sequences_together_get_the_same_records(found: Found) -> None:
    ranks = [rank["sets"] for rank in found(4)]
    assert ranks[0]["rows"] == ranks[1]["rows"]
    assert ranks[2]["rows"] == ranks[3]["rows"]
    assert not set(ranks[0]["rows"]) & set(ranks[2]["rows"])
    assert all(rank["right"] for rank in ranks)
