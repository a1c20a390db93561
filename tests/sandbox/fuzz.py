"""Bytes that a program may send back as a value, at random, and what must hold for each."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from verizero.sandbox import compare
from verizero.sandbox.worker import codec

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers()
keys = st.recursive(
    scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4
)  # fmt: skip
values = st.recursive(
    scalars | st.builds(range, st.integers(), st.integers(), st.integers(min_value=1)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(keys, inner, max_size=3)
        | st.frozensets(keys, max_size=3)
    ),
    max_leaves=12,
)
EXPECTED: tuple[Any, ...] = (
    0, 10**400, -(10**5000), 1.5, float("nan"), float("inf"), 1j, 1 + 0j, "1", b"1", None, True, [], [1, [2]], (),
    (1, 2), {}, {"a": 1}, {"1": 2}, {1: 2}, {(1, 2): 3}, set(), {1, 2}, {10**5000}, {(1, 1.0)}, {frozenset({1})},
    range(3), object(),
)  # fmt: skip

_bodies = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)
    | st.sampled_from(["0x1p-1074", "1e999", "-f", "f" * 300, "nan", "inf", "0x", "\ud800", "1_0", "00"])
    | st.integers(10**15, 10**40) | st.integers(1, 9).map(lambda k: f"{k * (2**61 - 1):x}"),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from("iftdsbcroz"), inner, min_size=1, max_size=1)
        | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=12,
)  # fmt: skip
structures = _bodies.map(lambda body: json.dumps(body).encode())
"""JSON in which the tags of encoded values hold anything."""


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Return an encoded value with some of its bytes changed, doubled or cut."""
    data = bytearray(codec.encode(draw(values)))
    for _ in range(draw(st.integers(1, 4))):
        at, to = sorted((draw(st.integers(0, len(data))), draw(st.integers(0, len(data)))))
        piece = draw(
            st.sampled_from([b"", bytes(data[at:to]) * 2, b'"', b"[", b"]", b"{", b"}", b",", b":", b"-", b"9"])
        )
        data[at:to] = piece
    return bytes(data)


def examine(data: bytes) -> bool:
    """Return True if the bytes are a value: a plain one, that nothing in the judge raises for. False if refused."""
    try:
        value = codec.read(data)
    except ValueError:
        return False
    assert holds_no_table(value)
    again = codec.read(codec.encode(value))
    assert codec.encode(again) == codec.encode(value)
    for expected in EXPECTED:
        wanted = codec.read(codec.encode(expected), of_program=False)
        assert compare.values_equal(value, wanted) in (True, False)
        assert (value == wanted) in (True, False)
    compare.values_equal(value, again)
    return True


def holds_no_table(value: Any) -> bool:
    """True if nothing in the value is a set, or a dict with a key that is no text."""
    if isinstance(value, dict):
        return all(type(k) is str for k in value) and all(map(holds_no_table, value.values()))
    if isinstance(value, list | tuple | codec.Unhashed):
        return all(map(holds_no_table, value))
    return not isinstance(value, set | frozenset)


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
def at_random(data: bytes) -> None:
    """Examine bytes that are nearly never a value."""
    examine(data)


@given(mutated())
def of_mutations(data: bytes) -> None:
    """Examine values with a few bytes changed."""
    examine(data)


@given(structures)
def of_structures(data: bytes) -> None:
    """Examine values with parts of every type in every place."""
    examine(data)


@given(values)
def of_values(value: Any) -> None:
    """Examine values of every type, and that each comes back as it was."""
    data = codec.encode(value)
    assert examine(data)
    read = codec.read(data)
    if b'"nan"' not in data:
        assert read == value == codec.decode(data)
        assert compare.values_equal(read, codec.read(data, of_program=False))


ALL = (at_random, of_mutations, of_structures, of_values)
