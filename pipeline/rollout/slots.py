"""The queue of responses that wait for a slot, and the response in each slot."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from verizero.pipeline.rollout.engine import Request

REFILL_SHARE = 0.125
"""Free slots are refilled, or removed if nothing waits, once they are this share of all: both cost about a step."""
PIECE_SHARE = 0.25
"""A group starts when all its responses fit into the free slots. Otherwise as many pieces of this share of
all slots start as fit; each piece computes the prompt again."""


class RequestPart(NamedTuple):
    """A prompt with some of the seeds of a request."""

    number: int
    """Index of the request."""
    first: int
    """Index of the part's first seed among the request's seeds."""
    request: Request


class Queue:
    """Responses that wait for a slot, the longest prompts first.

    Long prompts tend to have long responses; graders work on them while shorter ones are written.
    """

    def __init__(self, requests: Sequence[Request], max_slots: int) -> None:
        order = sorted(range(len(requests)), key=lambda i: -len(requests[i].prompt_ids))
        self._waiting = deque((i, 0, requests[i]) for i in order if requests[i].seeds)
        self.slots = min(max_slots, sum(len(r.seeds) for r in requests))
        self.min_free = max(1, int(self.slots * REFILL_SHARE))
        """The number of free slots from which they are refilled."""
        self._piece = max(1, int(self.slots * PIECE_SHARE))

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, max_rows: int, max_prompts: int) -> list[RequestPart]:
        """Return the next parts, up to these numbers of responses and prompts. A prompt's responses stay together."""
        parts: list[RequestPart] = []
        while self._waiting and max_rows and len(parts) < max_prompts:
            number, first, request = self._waiting[0]
            left = len(request.seeds) - first
            num = left if left <= max_rows else max_rows // self._piece * self._piece
            if num == 0:
                break
            parts.append(RequestPart(number, first, Request(request.prompt_ids, request.seeds[first : first + num])))
            max_rows -= num
            self._waiting.popleft()
            if num < left:
                self._waiting.appendleft((number, first + num, request))
        return parts


@dataclass(slots=True)
class SlotState:
    """The response in a slot, up to its last token."""

    index: tuple[int, int]
    """(index of the request, index of the seed)"""
    numbers: Iterator[float]
    """Uniform random numbers, one for each token."""
    number: float = 0.0
    """The random number for the next token."""
    last: int = 0
    """The token drawn last. A response that has ended is still computed until its slot is refilled or removed."""
    has_ended: bool = False
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """Size of the set that each token was drawn from; 0: the whole vocabulary."""
    sets: bytearray = field(default_factory=bytearray)
    """The sets, one after another, int32."""
    num_bounded: int = 0
    """Number of sets from which `max_kept` dropped tokens."""
    experts: bytearray = field(default_factory=bytearray)
    """The experts of its prompt and of all its tokens except the last, int16 [tokens, layers, top_k]."""
    num_prefilled: int = 0
    """Tokens of the prompt that were computed for this response, and for others to the same prompt."""

    def __post_init__(self) -> None:
        self.number = next(self.numbers)


class Slots:
    """The slots of the cache, and the response in each."""

    def __init__(self, slots: int) -> None:
        self.num_slots = slots
        self.states: list[SlotState] = []
        """The responses that a step computes, in the first slots."""

    @property
    def free(self) -> list[int]:
        """The slots that are free, in order: no response in them is being written."""
        ended = [slot for slot, state in enumerate(self.states) if state.has_ended]
        return [*ended, *range(len(self.states), self.num_slots)]

    @property
    def taken(self) -> list[int]:
        """The slots with a response that is being written, in order."""
        return [slot for slot, state in enumerate(self.states) if not state.has_ended]

    def take(self, new: Sequence[SlotState]) -> list[int]:
        """Put responses into the first free slots; return the slots."""
        slots = self.free[: len(new)]
        for slot, state in zip(slots, new, strict=True):
            self.states[slot : slot + 1] = [state]
        return slots

    def close_up(self, rows: int) -> tuple[list[int], list[int]]:
        """Move responses into the first `rows` slots; return (slots they were in, slots they are in now)."""
        sources = [slot for slot in self.taken if slot >= rows]
        targets = self.free[: len(sources)]
        for source, target in zip(sources, targets, strict=True):
            self.states[target] = self.states[source]
        del self.states[rows:]
        return sources, targets
