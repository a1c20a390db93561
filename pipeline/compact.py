"""Sequences of numbers in little memory: the tokens of a response and their log-probs, or only their count.

A tuple of Python's numbers takes about 70 bytes for a token and its log-prob; here it is 8. `Numbers` reads as a tuple
does: by index, slice and loop, equal to a tuple of the same numbers, with the same hash and text.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeVar, overload

N = TypeVar("N", covariant=True)
Kind = Literal["i", "q", "f", "d"]
"""int32, int64, float32, float64: the letters that `array` has for them."""


class Numbers(Sequence[N]):
    """Numbers of one type that never change.

    Example: integers((4, 1))[0] == 4
    """

    __slots__ = ("array",)

    def __init__(self, values: array[Any]) -> None:
        """Hold `values`, which nobody may change afterwards."""
        self.array = values

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, at: int) -> N: ...
    @overload
    def __getitem__(self, at: slice) -> Numbers[N]: ...
    def __getitem__(self, at: int | slice) -> N | Numbers[N]:
        read: Any = self.array[at]
        return Numbers(read) if isinstance(at, slice) else read

    def __iter__(self) -> Iterator[N]:
        return iter(self.array)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Numbers):
            return self.array == other.array
        return tuple(self) == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self.array))

    def __add__(self, other: Iterable[Any]) -> tuple[Any, ...]:
        return (*self, *other)

    def __radd__(self, other: Iterable[Any]) -> tuple[Any, ...]:
        return (*other, *self)

    def __repr__(self) -> str:
        return repr(tuple(self.array))

    def __reduce__(self) -> tuple[Any, ...]:
        return read_numbers, (self.array.typecode, self.array.tobytes())


def read_numbers(kind: Kind, data: bytes) -> Numbers[Any]:
    """Return the numbers whose bytes, in this machine's order, are `data`."""
    values = array(kind)
    values.frombytes(data)
    return Numbers(values)


def integers(values: Sequence[int]) -> Numbers[int]:
    """Return the numbers in 4 bytes each, or in 8 if one needs them."""
    if isinstance(values, Numbers):
        return values
    try:
        return Numbers(array("i", values))
    except OverflowError:
        return Numbers(array("q", values))


def reals(values: Sequence[float]) -> Numbers[float]:
    """Return the numbers in float32 where each of them is one, as engines report them, else in float64."""
    if isinstance(values, Numbers):
        return values
    short = array("f", values)
    return Numbers(short if short.tolist() == list(values) else array("d", values))


@dataclass(frozen=True, slots=True)
class Elsewhere(Sequence[Any]):
    """Numbers that another rank holds: only their count is known here, and for the sizes of sets how they add up.

    Example: len(Elsewhere(7)) == 7
    """

    length: int
    total: int = 0
    """The sum of the numbers."""
    num_positive: int = 0

    def __len__(self) -> int:
        return self.length

    def __reduce__(self) -> tuple[Any, ...]:
        return Elsewhere, (self.length, self.total, self.num_positive)

    def __getitem__(self, at: Any) -> NoReturn:
        raise LookupError(
            f"these {self.length} numbers are on the rank that sampled them; ask that rank, or gather the whole groups"
        )

    def __iter__(self) -> Iterator[Any]:
        return iter([self[0]])


@contextmanager
def no_collection() -> Iterator[None]:
    """Let Python's collector of garbage rest: it visits all objects again and again while many new ones are made."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def totals(sizes: Sequence[int]) -> tuple[int, int]:
    """Return the sum of the sizes, and how many of them are above 0."""
    if isinstance(sizes, Elsewhere):
        return sizes.total, sizes.num_positive
    return sum(sizes), sum(n > 0 for n in sizes)
