"""Compact sequences read as tuples do, lose no number, and those of another rank tell only how many there are."""

from __future__ import annotations

import copy
import gc
import math
import pickle
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verizero.pipeline.compact import Elsewhere, Numbers, integers, no_collection, reals, totals

IDS = st.lists(st.integers(-(2**40), 2**40)).map(tuple)
SHORT, LONG = st.floats(width=32, allow_nan=False), st.floats(allow_nan=False)
LOGPROBS = st.lists(SHORT | LONG).map(tuple)


@given(IDS, LOGPROBS, st.integers(-9, 9), st.integers(-9, 9))
def test_numbers_read_as_the_tuple_they_were_made_of(
    ids: tuple[int, ...], logprobs: tuple[float, ...], begin: int, end: int
) -> None:
    for plain, held in ((ids, integers(ids)), (logprobs, reals(logprobs))):
        assert tuple(held) == plain == held
        assert held == plain
        assert len(held) == len(plain)
        assert hash(held) == hash(plain)
        assert repr(held) == repr(plain)
        assert held[begin:end] == plain[begin:end]
        assert [held[i] for i in range(len(plain))] == list(plain)
        assert held + plain == plain + held == plain + plain
        assert [type(x) for x in held] == [type(x) for x in plain]
        assert bool(held) == bool(plain)


@given(IDS, LOGPROBS)
def test_numbers_survive_a_message_and_a_copy(ids: tuple[int, ...], logprobs: tuple[float, ...]) -> None:
    for held in (integers(ids), reals(logprobs)):
        for again in (pickle.loads(pickle.dumps(held)), copy.deepcopy(held)):
            assert again == held
            assert again.array.typecode == held.array.typecode


@pytest.mark.parametrize(
    ("held", "kind"),
    [
        (integers((1, 2**31 - 1)), "i"),
        (integers((1, 2**31)), "q"),
        (reals((-0.5, -0.25)), "f"),
        (reals((-0.1,)), "d"),
        (reals((math.nan,)), "d"),
        (reals((-1e300,)), "d"),
        (reals(()), "f"),
    ],
)
def test_numbers_take_the_fewest_bytes_that_hold_them(held: Numbers[Any], kind: str) -> None:
    assert held.array.typecode == kind
    assert len(pickle.dumps(held)) < 80 + held.array.itemsize * len(held)


def test_what_is_compact_already_is_not_copied() -> None:
    for held in (integers((1, 2)), reals((-0.5,))):
        assert (integers if held.array.typecode == "i" else reals)(held) is held  # type: ignore[operator]


def test_numbers_differ_from_others_and_from_lists() -> None:
    assert integers((1, 2)) != integers((1, 3))
    assert integers((1, 2)) != (1, 2, 3)
    assert integers((1, 2)) != [1, 2], "as a tuple differs from a list"
    assert Numbers(array("q", (1, 2))) == integers((1, 2))


def test_numbers_elsewhere_have_a_count_and_refuse_to_be_read() -> None:
    there = Elsewhere(3, 9, 2)
    assert len(there) == 3
    assert totals(there) == (9, 2) == totals((4, 0, 5)) == totals(integers((4, 0, 5)))
    for read in (lambda: there[0], lambda: list(there), lambda: tuple(there), lambda: 4 in there):
        with pytest.raises(LookupError, match="3 numbers are on the rank that sampled them"):
            read()
    assert pickle.loads(pickle.dumps(there)) == there


def test_the_collector_of_garbage_is_as_it_was_afterwards() -> None:
    for is_on in (True, False):
        (gc.enable if is_on else gc.disable)()
        with no_collection(), no_collection():
            assert not gc.isenabled()
        with pytest.raises(ValueError, match="x"), no_collection():
            raise ValueError("x")
        assert gc.isenabled() is is_on
    gc.enable()
