"""Values at random: what a program sends back never raises in the judge, and is never hashed there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings

from tests.sandbox import fuzz

pytestmark = pytest.mark.integration  # some seconds of a core


@pytest.mark.parametrize("act", fuzz.ALL, ids=lambda act: act.__name__)
def test_no_bytes_raise_anything_but_a_value_error(act: Callable[[], None]) -> None:
    settings(max_examples=150, deadline=None)(act)()


def test_the_examples_reach_values_and_refusals() -> None:
    assert fuzz.examine(b'{"s":[{"i":"1fffffffffffffff"},{"t":[{"f":"nan"},{"r":[1,2,3]}]}]}')
    for data in (
        b'{"s":[[]]}',
        b"1.5",
        b"123456789012345678901",
        b'{"d":[[{"d":[]},1]]}',
        b'{"t":[{"t":[{"s":[[]]}]}]}',
    ):
        assert not fuzz.examine(data)
