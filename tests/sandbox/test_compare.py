"""Outputs and values: what is equal, by slow doubles and by cases; and what survives the way through bytes."""

# ruff: noqa: E501  (tables of cases)

import json
import math
import tracemalloc
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verizero.sandbox import compare
from verizero.sandbox.worker import codec, seccomp, syscalls

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
def mutated(draw):
    data = bytearray(codec.encode(draw(values)))
    for _ in range(draw(st.integers(1, 4))):
        at, to = sorted((draw(st.integers(0, len(data))), draw(st.integers(0, len(data)))))
        piece = draw(
            st.sampled_from([b"", bytes(data[at:to]) * 2, b'"', b"[", b"]", b"{", b"}", b",", b":", b"-", b"9"])
        )
        data[at:to] = piece
    return bytes(data)


def examine(data):
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


def holds_no_table(value):
    """True if nothing in the value is a set, or a dict with a key that is no text."""
    if isinstance(value, dict):
        return all(type(k) is str for k in value) and all(map(holds_no_table, value.values()))
    if isinstance(value, list | tuple | codec.Unhashed):
        return all(map(holds_no_table, value))
    return not isinstance(value, set | frozenset)


texts = st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass"))


@pytest.mark.run
@pytest.mark.parametrize(
    "data",
    [st.binary(max_size=60) | texts, mutated(), structures],  # nearly never a value, nearly one, and of any structure
    ids=["at random", "mutated", "structures"],
)
def test_no_bytes_raise_anything_but_a_value_error(data):
    """What a program sends back never raises in the judge, and is never hashed there."""

    @settings(max_examples=150, deadline=None)
    @given(data)
    def check(encoded):
        examine(encoded)

    check()


@pytest.mark.run
@settings(max_examples=150, deadline=None)
@given(values)
def test_each_value_comes_back_as_it_was(value):
    data = codec.encode(value)
    assert examine(data)
    read = codec.read(data)
    if b'"nan"' not in data:
        assert read == value == codec.decode(data)
        assert compare.values_equal(read, codec.read(data, of_program=False))


def test_nothing_that_a_program_returns_is_hashed():
    of_one_hash = [k * (2**61 - 1) for k in range(1, 1000)]
    for value in (set(of_one_hash), dict.fromkeys(of_one_hash, 0), [{(k, -1) for k in of_one_hash}], {1: {2: {3}}}):
        got = codec.read(codec.encode(value))
        assert holds_no_table(got)
        assert got == value
        assert compare.values_equal(got, value)
        assert not compare.values_equal(got, [])
    assert codec.read(codec.encode({"a": {1}, "b": 2})) == {"b": 2, "a": {1}}
    assert repr(codec.read(codec.encode([{1: 2}, {3}, set(), {}]))) == "[{1: 2}, {3}, set(), {}]"


@pytest.mark.run
def test_a_returned_value_is_bounded_and_fits_into_the_arguments_of_a_call():
    deep: Any = 1
    for _ in range(codec.MAX_DEPTH):
        deep = [deep]
    got = codec.read(codec.encode(deep))
    assert codec.decode(codec.encode({"fn": "check", "args": [[got]]})) == {"fn": "check", "args": [[deep]]}
    most = b"[" + b"0," * (codec.MAX_ITEMS - 3) + b"0]"
    commas = codec.encode(["," * codec.MAX_ITEMS + '"\\\\'] * 2)
    assert len(codec.read(most)) == codec.MAX_ITEMS - 2
    assert codec.encode(codec.read(commas)) == commas
    huge = (1 << codec.MAX_INT_BITS) - 1
    assert codec.read(codec.encode(huge)) == huge
    for data in (
        codec.encode([deep]), most[:-1] + b",0,0,0]", b'{"i":"%x"}' % (huge + 1), b"12345678901234567890", b"NaN", b"1e5",
        b"[" * 500_000, b'{"o":[]}', '"\xe9"'.encode(), b'{"s":[{"t":[[]]}]}', b'{"d":[[{"s":[{"d":[]}]},1]]}',
    ):  # fmt: skip
        with pytest.raises(ValueError):
            codec.read(data)


def test_of_a_long_output_no_more_is_made_than_the_expected_one_has():
    for got, expected in (("1 " * 300_000, "1 2"), ("1 2\n" * 200_000, "1 2\n3"), ("7\n" * 200_000, "7\n7 ")):
        tracemalloc.start()
        assert not compare.outputs_equal(got, expected)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 3 * len(got)


def test_what_is_too_much_is_refused():
    loop: list[Any] = []
    loop.append(loop)
    for value in (loop, 1 << (codec.MAX_INT_BITS + 1)):
        with pytest.raises(codec.Unencodable):
            codec.encode(value)
    for value in ([0] * 11, {i: i for i in range(11)}, b"x" * 11, [[0] * 11], set(range(11))):
        assert codec.decode(codec.encode(value, 11)) == value
        with pytest.raises(codec.Unencodable):
            codec.encode(value, 10)
    for data in (
        b'{"i": "' + b"f" * 300_000 + b'"}',
        b'{"s": [[1]]}',
        b"1.5",
        b'{"z": 1}',
        b'{"t": 5}',
        b"\xff",
    ):
        with pytest.raises(ValueError):
            codec.decode(data)


UNEQUAL = [
    (True, 1), (1, True), (False, 0), (None, 0), (None, False), ("1", 1), (b"a", "a"), (float("nan"), float("nan")),
    ([1], (1,)), ({1}, [1]), ([], None), ({}, []), (10**12 + 1, 10**12), (1.001, 1.0), (0.0, 1e-10),
    (float("inf"), 1e308), ({"a": 1}, {"a": 1, "b": 2}), ({"a": True}, {"a": 1}), ({1: 2, "1": 3}, {"1": 3}),
    (frozenset([True]), {1}), ([[1, [True]]], [[1, [1]]]), (10**400, 1.5), (1j, 10**400), ({10**5000: 1}, {"a": 1}),
    ({10**5000}, {1}), ({1: 2}, {1.0: 2}), ({-1}, {-2}), ({(1, 2)}, {(2, 1)}), ({frozenset([1])}, {frozenset([2])}),
    ({range(10**5000)}, {1}), (range(3), range(4)), ({True: 2}, {"True": 2}), ({1: 2, "1": 2}, {"1": 2, "2": 2}),
    ({int: 1}, {int: 1}), ({int}, {int}), (1, 1 + 0j), ({"a"}, {"b"}), ({1: 10**5000}, {1: 1}),
    ({(1, -(10**5000)): 1}, {(1, 2): 1}), ([10**5000], [0.5]), ({"\ud800": 1}, {"a": 1}), ({float("nan"): 1}, {1: 1}),
    ({frozenset({frozenset({10**5000})})}, {frozenset({1})}), (eval("[" * 90 + "]" * 90), eval("[" * 90 + "1" + "]" * 90)),
]  # fmt: skip
EQUAL = [
    (1, 1.0), (1.0, 1), (0.1 + 0.2, 0.3), ((1, 2), [1, 2]), ((1,), (1,)), ({1: "a"}, {"1": "a"}), ([], []), ("é", "é"),
    (frozenset([1, 2]), {2, 1}), (float("inf"), float("inf")), (1e-13, 0.0), (2j, 2j),
    (1 + 0j, 1), ({10**5000: 1}, {10**5000: 1}), ({10**5000, 3}, {3, 10**5000}), ({(1, (2, "a"))}, {(1, (2, "a"))}),
    ({frozenset([1, 2]): [1.0]}, {frozenset([2, 1]): [1]}), ({1: {2: 3}, "b": 4}, {"b": 4, "1": {"2": 3}}), (set(), set()),
    ({range(10**5000): 1}, {range(10**5000): 1}), ({None: 1, True: 2}, {True: 2, None: 1}), ({}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("got", "expected"), UNEQUAL)
def test_unequal_values(got, expected):
    assert not compare.values_equal(codec.read(codec.encode(got)), expected)
    assert not compare.values_equal(codec.read(codec.encode(got)), codec.read(codec.encode(expected)))


@pytest.mark.parametrize(("got", "expected"), EQUAL)
def test_equal_values(got, expected):
    assert compare.values_equal(codec.read(codec.encode(got)), expected)
    assert compare.values_equal(codec.read(codec.encode(got)), codec.read(codec.encode(expected)))


class Liar:
    """Equal to everything, if it were asked."""

    def __eq__(self, other):
        return True

    __hash__ = object.__hash__


def test_an_object_of_any_other_type_equals_nothing():
    got = codec.read(codec.encode([Liar(), Liar]))
    assert not compare.values_equal(got, [1, 2])
    assert isinstance(got[0], codec.Opaque)


@pytest.mark.parametrize(
    ("got", "expected", "equal"),
    [
        ("1\n2\n", "1\n2", True), ("1 \n2", "1\n2", True), ("1\n\n2", "1\n2", False), ("1  2", "1 2", True),
        ("0.30000000000000004", "0.3", True), ("0.3", "0.30000000000000004", True), ("1.0", "1", False), ("1", "1.0", True),
        ("0", "0.0000001", False), ("nan", "nan", True), ("nan", "0.5", False), ("inf", "1.5", False), ("1_0.0", "10.0", False),
        ("٣.٠", "3.0", False), ("1e-07", "0.0000001", True), ("a 1.50001", "a 1.5", False), ("", "", True), (" ", "x", False),
        ("1000000.4", "1000000.0", False), ("12", "13", False), ("1e400", "1.0", False),
        ("0.3333333333333333", "0.33333", True), ("0.33334", "0.33333", False), ("0.333337", "0.33333", False),
        ("0.3333333", "0.3333333333333333", True), ("0.26", "0.3", False), ("0.00005", "0.0001", False), ("3.3333", "3.33", False),
        ("1234568.20", "1234567.89", False), ("1234567.891", "1234567.891234", True), ("100000042.42", "99999999.99", False),
        ("1700001000.25", "1700000000.25", False), ("1700001000.250000", "1700000000.250000", False), ("3.1", "3.10", True),
        ("1e9", "1000000000.0", True), ("120000", "12e4", False), ("100000000000000000000", "1e+20", True), ("0.00001", "1e-05", True),
        ("15000000000", "1.5e10", True), ("14900000000", "1.5e10", False), ("1000.1234", "1000.123456", True),
    ],
)  # fmt: skip
def test_outputs(got, expected, equal):
    assert compare.outputs_equal(got, expected) is equal


@pytest.mark.run
@given(st.fractions(-1000, 1000), st.fractions(-1000, 1000))
def test_close_decimals_against_exact_arithmetic(a, b):
    got, expected = f"{float(a):.9f}", f"{float(b):.9f}"
    x, y = Fraction(got), Fraction(expected)
    gap, allowed = abs(x - y), max(abs(y) / 10**6, Fraction(1, 2 * 10**9))
    if not math.isclose(gap, allowed, rel_tol=1e-6):
        assert compare.outputs_equal(got, expected) is (gap < allowed)


def run_filter(machine, number, arguments, own_pid, forks=False):
    """What the kernel would answer under the whole filter."""
    return interpret(whole_filter(machine, own_pid, forks), machine, number, arguments)


def whole_filter(machine, own_pid, forks):
    table, guards = seccomp._rules(machine, own_pid, forks)
    return seccomp._assembled(machine, table.values(), guards)


def interpret(code, machine, number, arguments):
    """A slow interpreter of classic BPF."""
    data = {0: number, 4: syscalls.AUDIT_ARCH[machine]}
    for place in range(6):
        value = arguments[place] if place < len(arguments) else 0
        data[16 + 8 * place], data[20 + 8 * place] = value & 0xFFFFFFFF, value >> 32 & 0xFFFFFFFF
    at, acc, index, stored = 0, 0, 0, dict[int, int]()
    while True:
        op, yes, no, constant = code[at]
        at += 1
        if op == 0x06:
            return constant
        if op in (0x15, 0x45, 0x35, 0x25):
            hit = {0x15: acc == constant, 0x45: bool(acc & constant), 0x35: acc >= constant, 0x25: acc > constant}[op]
            at += yes if hit else no
        elif op == 0x02:
            stored[constant] = acc
        elif op in (0x07, 0x61):
            index = acc if op == 0x07 else stored[constant]
        else:
            acc = {0x20: data.get(constant, 0), 0x00: constant, 0x60: stored.get(constant, 0), 0x87: index,
                   0x54: acc & constant, 0x6C: acc << (index & 31) & 0xFFFFFFFF, 0x74: acc >> constant}[op]  # fmt: skip


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_allows_what_is_listed_and_nothing_else(machine):
    table, guarded = syscalls.TABLES[machine], set(syscalls.GUARDED[machine].values())
    for number in range(600):
        if number not in guarded:
            allowed = run_filter(machine, number, (), 1) == 0x7FFF0000
            assert allowed is (number in table.values()), number


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_guarded_calls_depend_on_their_arguments(machine):
    numbers = syscalls.GUARDED[machine]
    for name, arguments, allowed in (
        ("clone", (0x10000 | 0xF00,), True), ("clone", (17,), False), ("clone3", (), False), ("kill", (77, 9), True),
        ("kill", (78, 9), False), ("kill", (0xFFFFFFFF, 9), False), ("tgkill", (77, 77), True), ("prlimit64", (0, 7, 0), True),
        ("prlimit64", (0, 7, 1), False), ("prlimit64", (0, 7, 1 << 32), False), ("prlimit64", (9, 3, 1), False), ("prlimit64", (0, 3, 1, 1), False),
        ("prlimit64", (0, 3, 1, 1 << 32), False), ("prlimit64", (0, 3, 0, 1), True), ("socketpair", (1,), True),
        ("socketpair", (2,), False), ("fcntl", (0, 4), True), ("fcntl", (0, 8), False), ("ioctl", (0, 0x5401), True),
        ("ioctl", (0, 0x5412), False), ("sendto", (1, 2, 3, 4, 0), True), ("sendto", (1, 2, 3, 4, 5), False),
    ):  # fmt: skip
        assert (run_filter(machine, numbers[name], arguments, 77) == 0x7FFF0000) is allowed, (name, arguments)
    assert run_filter(machine, numbers["prlimit64"], (0, 3, 1 << 32), 77) == 0x00050000, "no error, and no change"
    assert run_filter(machine, numbers["clone"], (17,), 1, forks=True) == 0x7FFF0000
    assert run_filter(machine, numbers["clone"], (0x10000000 | 17,), 1, forks=True) != 0x7FFF0000


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize(("namespaces", "forks"), [(True, False), (False, False), (True, True), (False, True)])
def test_the_forkers_filter_and_the_childs_are_together_the_whole_one(machine, namespaces, forks):
    own = 1 if namespaces else 4711
    whole = whole_filter(machine, own, forks)
    first = seccomp.outer(machine, 1 if namespaces else None, forks)
    second = seccomp.inner(machine, None if namespaces or forks else own, forks)
    firsts = (0, 1, 2, 4711, 17, 0x20000011, 0x10F00, 15, 22, 1 << 32, 0xFFFFFFFF, 0x5401, 1030)
    depends = {n for table in (syscalls.GUARDED, syscalls.EXEC, syscalls.SETUP) for n in table[machine].values()}
    for number in range(600):
        for a in firsts if number in depends else (17,):
            for arguments in ((a,), (a, a, a, 0, a), (0, a, 1 << 33, 0, 1)):
                wanted = interpret(whole, machine, number, arguments)
                both = {interpret(code, machine, number, arguments) for code in (first, second)} - {0x7FFF0000}
                assert both == {wanted} - {0x7FFF0000}, (number, arguments)
    assert len(second) < len(whole) / 2, "every run compiles it"
