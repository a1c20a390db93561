"""The host's side of a decode: responses that wait, and the slot of each that is being written."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
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
        self.total = sum(len(r.seeds) for r in requests)
        self.slots = min(most, self.total)
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


class Seat(NamedTuple):
    """A response that is being written."""

    place: tuple[int, int]
    """Index of the request, and of the seed."""
    row: int
    """Its number among all responses of the call."""
    begun: int
    """Steps that had been taken before its first token was drawn."""


class Seats:
    """Which response is in which slot."""

    def __init__(self, slots: int) -> None:
        self.seats: list[Seat | None] = [None] * slots
        self.rows = 0
        """The slots that a step computes: the first so many."""

    @property
    def free(self) -> list[int]:
        """The slots without a response, in order."""
        return [slot for slot, seat in enumerate(self.seats) if seat is None]

    @property
    def taken(self) -> list[int]:
        """The slots with a response, in order."""
        return [slot for slot, seat in enumerate(self.seats) if seat is not None]

    def leave(self, slots: Sequence[int]) -> list[Seat]:
        """Free slots; return what was in them."""
        left = [seat for slot in slots if (seat := self.seats[slot]) is not None]
        for slot in slots:
            self.seats[slot] = None
        return left

    def closed_up(self, rows: int) -> tuple[list[int], list[int]]:
        """Move responses into the first `rows` slots; return the slots that they left and those that they took."""
        sources = [slot for slot in self.taken if slot >= rows]
        targets = self.free[: len(sources)]
        for a, b in zip(sources, targets, strict=True):
            self.seats[b], self.seats[a] = self.seats[a], None
        self.rows = rows
        return sources, targets
