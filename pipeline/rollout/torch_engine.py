"""The embedded engine: decodes in this process, in slots of a preallocated cache that are refilled as responses end.

vLLM generates on GPUs; this engine is for CPUs and for tests, and on any device the plain fall-back.

`publish` copies the weights of the policy's module, so an update never reaches responses that are being written; where
only adapters are trained, it copies these, and the engine computes with the trainer's own base. Models of the Llama
family take the fast path of `verizero.pipeline.models.decoder`; any other causal LM goes through transformers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch

from verizero.pipeline.errors import EngineError, boundary
from verizero.pipeline.host.heap import trim_heap
from verizero.pipeline.models.adapted_layers import frozen_base
from verizero.pipeline.models.decoder import Decoder, check_parity, unsupported
from verizero.pipeline.models.quantized import is_quantized
from verizero.pipeline.models.strictness import turn
from verizero.pipeline.rollout.engine import Completion, Ended, EndedReader, Request, Sampling, check_requests
from verizero.pipeline.rollout.hf_decoder import HfDecoder
from verizero.pipeline.rollout.sampling import Kept, pick, pick_kept, uniforms
from verizero.pipeline.types import KeptTokens, Routing

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


class TorchEngine:
    """Generates with the module `model` (a transformers causal LM), on its device."""

    answers_threads = False

    def __init__(self, model: Any, eos_ids: Sequence[int], pad_id: int, max_rows: int = 1024) -> None:
        self.model = model
        self.eos_ids = frozenset(eos_ids)
        self.pad_id = pad_id
        self.max_rows = max_rows
        self.version = -1
        self.fallback_reason: str | None = None
        base = frozen_base(model)
        shared = {id(p) for p in base}
        self._in_bits = any(map(is_quantized, base))
        self._num_bytes = sum(p.nbytes for p in model.parameters() if id(p) not in shared)
        self._decoder: Decoder | HfDecoder = self._choose()

    @property
    def is_fast(self) -> bool:
        """True if the fast decode path is in use."""
        return isinstance(self._decoder, Decoder)

    def publish(self, version: int) -> None:
        """Copy the module's present weights and call them `version`."""
        with boundary(EngineError, "publishing weights to the embedded engine"):
            self._decoder.refresh()
        self.version = version

    @torch.inference_mode()
    def generate(
        self, requests: Sequence[Request], sampling: Sampling, reader: EndedReader | None = None
    ) -> list[list[Completion]]:
        """Return, per request, one completion per seed; `reader` receives each in the step in which it ends.

        Raises: EngineError for a prompt that leaves no room in the model's context.
        """
        limit = getattr(self.model.config, "max_position_embeddings", None)
        check_requests(requests, sampling.max_tokens, limit, "the model's context")
        completions = _Decode(self, requests, sampling, reader).run() if any(r.seeds for r in requests) else {}
        return [[completions[i, k] for k in range(len(request.seeds))] for i, request in enumerate(requests)]

    def rest(self) -> None:
        """Give freed memory back where the base is in bits, to save memory: an update's tensors do not all fit it."""
        if self._in_bits:
            trim_heap()

    def counts(self) -> Mapping[str, float]:
        """Return the bytes that the last publish copied: those of adapters alone, if the policy has them."""
        return {"publish/bytes": float(self._num_bytes)}

    def close(self) -> None:
        """Do nothing: the memory is freed with the engine object."""

    def _choose(self) -> Decoder | HfDecoder:
        fast = Decoder.of(self.model)
        if fast is None:
            self.fallback_reason = f"no fast path for {unsupported(self.model.config)}"
            return HfDecoder(self.model, self.pad_id)
        try:
            check_parity(fast)
        except ValueError as exc:
            self.fallback_reason = str(exc)
            return HfDecoder(self.model, self.pad_id)
        return fast


class _Decode:
    """One call of `generate`."""

    def __init__(
        self, engine: TorchEngine, requests: Sequence[Request], sampling: Sampling, reader: EndedReader | None
    ) -> None:
        self.requests, self.sampling, self.reader = requests, sampling, reader
        self.decoder, self.ends, self.device = engine._decoder, engine.eos_ids, engine.model.device
        self.queue = Queue(requests, engine.max_rows)
        with_seeds = [r for r in requests if r.seeds]
        lengths, repeats = [len(r.prompt_ids) for r in with_seeds], [len(r.seeds) for r in with_seeds]
        self.cache = cast(Any, self.decoder.open(lengths, repeats, engine.max_rows, sampling.max_tokens))
        self.slots = Slots(self.queue.slots)
        self.keeps = sampling.is_cut and sampling.max_kept > 0
        self.layers = self.top_k = 0
        self.completions: dict[tuple[int, int], Completion] = {}

    def run(self) -> dict[tuple[int, int], Completion]:
        """Decode all; return each completion by (index of the request, index of the seed)."""
        while self._advance():
            self._complete_ended()
        return self.completions

    def _advance(self) -> bool:
        """Draw tokens; False if nothing is left to draw."""
        with turn("ordered") if self.decoder.needs_switch else turn("unswitched"):
            return self._refill() or self._step()

    def _refill(self) -> bool:
        """Start waiting responses: compute their prompts, draw their first tokens. False if none can start now."""
        if not self.queue:
            return False
        free = self.slots.free
        if len(free) < (self.queue.min_free if self.decoder.refills else self.slots.num_slots):
            return False
        parts = self.queue.take(len(free), self.cache.places)
        if not parts:
            return False
        new = [
            SlotState((part.number, part.first + k), uniforms(seed))
            for part in parts
            for k, seed in enumerate(part.request.seeds)
        ]
        prompts, repeats = [p.request.prompt_ids for p in parts], [len(p.request.seeds) for p in parts]
        self._draw(self.decoder.admit(self.cache, prompts, repeats, self.slots.take(new)), new)
        self._resize(max(self.slots.taken) + 1)
        return True

    def _step(self) -> bool:
        """Draw a token for each response in a slot; False if there is none."""
        states = self.slots.states
        if not self.slots.taken:
            return False
        last = torch.tensor([state.last for state in states], device=self.device)
        self._draw(self.decoder.step(last, self.cache), states)
        return True

    def _draw(self, logits: torch.Tensor, states: Sequence[SlotState]) -> None:
        """Draw a token for each response from its row of logits [n, V]."""
        numbers = torch.tensor([state.number for state in states], dtype=torch.float64, device=self.device)
        drawn = (pick_kept if self.keeps else pick)(logits, numbers, self.sampling)
        for state, token, logprob in zip(states, drawn[0].tolist(), drawn[1].tolist(), strict=True):
            # Also for one that has ended: with experts, its tokens change the rounding of the others.
            state.last = token
            if not state.has_ended:
                state.ids.append(token)
                state.logprobs.append(logprob)
                state.number = next(state.numbers)
        if len(drawn) == 3:
            self._keep_sets(states, drawn[2])
        routing = getattr(self.cache, "routing", None)
        if self.sampling.keep_routing and routing is not None:
            self._keep_experts(states, routing)

    def _keep_sets(self, states: Sequence[SlotState], kept: Kept) -> None:
        sizes, bounded = kept.sizes.tolist(), kept.bounded.tolist()
        for state, ids, size, is_bounded in zip(states, kept.ids.cpu().numpy(), sizes, bounded, strict=True):
            if not state.has_ended:
                state.sizes.append(size)
                state.sets += ids[:size].tobytes()
                state.num_bounded += is_bounded

    def _keep_experts(self, states: Sequence[SlotState], routing: torch.Tensor) -> None:
        """Add the experts [n, tokens, layers, top_k] of prompts, padded on the left, or of one token each."""
        self.layers, self.top_k = routing.shape[2:]
        for state, experts in zip(states, routing.cpu().numpy(), strict=True):
            if not state.has_ended:
                state.experts += experts[-len(self.requests[state.index[0]].prompt_ids) :].tobytes()

    def _complete_ended(self) -> None:
        """Complete the responses that have ended."""
        states = self.slots.states
        ended = [slot for slot in self.slots.taken if self._ends(states[slot])]
        if not ended:
            return
        self.cache.leave(ended)
        just_ended = []
        for state in (states[slot] for slot in ended):
            state.has_ended = True
            self.completions[state.index] = completion = self._completion(state)
            just_ended.append(Ended(*state.index, completion.token_ids, completion.finish_reason))
        if self.reader is not None:
            self.reader(just_ended)
        rows, alive = len(states), len(self.slots.taken)
        will_refill = self.queue and self.decoder.refills and self.slots.num_slots - alive >= self.queue.min_free
        if alive and not will_refill and rows - alive >= REFILL_SHARE * rows:
            self._resize(alive)

    def _resize(self, rows: int) -> None:
        self.cache.move(*self.slots.close_up(rows))
        self.cache.resize(rows)

    def _ends(self, state: SlotState) -> bool:
        return state.ids[-1] in self.ends or len(state.ids) == self.sampling.max_tokens

    def _completion(self, state: SlotState) -> Completion:
        return Completion(
            tuple(state.ids),
            tuple(state.logprobs),
            "stop" if state.ids[-1] in self.ends else "length",
            KeptTokens(tuple(state.sizes), bytes(state.sets), state.num_bounded) if self.keeps else None,
            Routing(self.layers, self.top_k, bytes(state.experts)) if state.experts else None,
        )
