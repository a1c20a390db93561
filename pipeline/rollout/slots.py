"""Responses that wait, and the slot of each that is being written."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from verizero.pipeline.rollout.engine import Request

REFILL_SHARE = 0.125
"""Slots are refilled, or given up once nothing waits, when this share of them is free: both cost about a step."""
PIECE_SHARE = 0.25
"""The responses to a prompt wait for as many free slots, but for no more than this share of all. Where they are more
they begin in pieces, each of which computes the prompt again."""


class Part(NamedTuple):
    """A prompt with some of the seeds of a request."""

    number: int
    """Index of the request."""
    first: int
    """Index of the part's first seed among the request's seeds."""
    request: Request


class Queue:
    """Responses that wait for a slot, those to the longest prompts first.

    Their responses tend to be the longest, and graders work on them while the rest is written.
    """

    def __init__(self, requests: Sequence[Request], most: int) -> None:
        order = sorted(range(len(requests)), key=lambda i: -len(requests[i].prompt_ids))
        self._waiting = deque((i, 0, requests[i]) for i in order if requests[i].seeds)
        self.slots = min(most, sum(len(r.seeds) for r in requests))
        self.least = max(1, int(self.slots * REFILL_SHARE))
        """Slots that must be free before any is refilled."""
        self._piece = max(1, int(self.slots * PIECE_SHARE))

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, rows: int, prompts: int) -> list[Part]:
        """Return the next parts, at most so many rows and prompts. The responses to a prompt stay together."""
        parts: list[Part] = []
        while self._waiting and rows and len(parts) < prompts:
            number, first, request = self._waiting[0]
            left = len(request.seeds) - first
            num = left if left <= rows else rows // self._piece * self._piece
            if num == 0:
                break
            parts.append(Part(number, first, Request(request.prompt_ids, request.seeds[first : first + num])))
            rows -= num
            self._waiting.popleft()
            if num < left:
                self._waiting.appendleft((number, first + num, request))
        return parts


@dataclass(slots=True)
class Seat:
    """A response in a slot."""

    place: tuple[int, int]
    """Index of the request, and of the seed."""
    numbers: Iterator[float]
    """The uniform numbers by which its tokens are drawn."""
    number: float = 0.0
    """The number of the next token."""
    last: int = 0
    """The token drawn last. A response that has ended is computed until its slot is taken or given up."""
    has_ended: bool = False
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """Size of the set that each token was drawn from; 0: the whole vocabulary."""
    sets: bytearray = field(default_factory=bytearray)
    """The sets, one after another, int32."""
    num_bounded: int = 0
    """Sets that `max_kept` left tokens out of."""
    experts: bytearray = field(default_factory=bytearray)
    """The experts of its prompt and of its tokens but the last, int16 [tokens, layers, top_k]."""

    def __post_init__(self) -> None:
        self.number = next(self.numbers)


class Seats:
    """Which response is in which slot."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.seats: list[Seat] = []
        """The responses that a step computes, in the first slots."""

    @property
    def free(self) -> list[int]:
        """The slots without a response that is being written, in order."""
        ended = [slot for slot, seat in enumerate(self.seats) if seat.has_ended]
        return [*ended, *range(len(self.seats), self.slots)]

    @property
    def taken(self) -> list[int]:
        """The slots with a response that is being written, in order."""
        return [slot for slot, seat in enumerate(self.seats) if not seat.has_ended]

    def take(self, new: Sequence[Seat]) -> list[int]:
        """Put responses into the first free slots, and return those."""
        slots = self.free[: len(new)]
        for slot, seat in zip(slots, new, strict=True):
            self.seats[slot : slot + 1] = [seat]
        return slots

    def closed_up(self, rows: int) -> tuple[list[int], list[int]]:
        """Move responses into the first `rows` slots; return the slots that they left and those that they took."""
        sources = [slot for slot in self.taken if slot >= rows]
        targets = self.free[: len(sources)]
        for a, b in zip(sources, targets, strict=True):
            self.seats[b] = self.seats[a]
        del self.seats[rows:]
        return sources, targets
