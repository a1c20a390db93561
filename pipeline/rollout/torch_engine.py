"""The embedded engine: decodes in this process, in slots of a preallocated cache that are refilled as responses end.

vLLM generates on GPUs; this engine is for CPUs and for tests, and on any device the plain fall-back.

`publish` copies the weights of the policy's module, so an update never reaches responses that are being written. Models
of the Llama family take the fast path of `verizero.pipeline.models.cpu`; any other causal LM goes through transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from verizero.pipeline.errors import EngineError, boundary
from verizero.pipeline.models.cpu import Decoder, check_parity, unsupported
from verizero.pipeline.rollout.engine import Completion, Ended, Listener, Request, Sampling, check_requests
from verizero.pipeline.rollout.hf_decoder import HfDecoder
from verizero.pipeline.rollout.sampling import Kept, pick, pick_kept, uniforms
from verizero.pipeline.rollout.slots import REFILL_SHARE, Queue, Seat, Seats
from verizero.pipeline.types import KeptTokens, Routing


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
        self, requests: Sequence[Request], sampling: Sampling, listener: Listener | None = None
    ) -> list[list[Completion]]:
        """Return, per request, one completion per seed; `listener` hears of each in the step of its end.

        Raises: EngineError for a prompt that leaves no room in the model's context.
        """
        limit = getattr(self.model.config, "max_position_embeddings", None)
        check_requests(requests, sampling.max_tokens, limit, "the model's context")
        asked = [r for r in requests if r.seeds]
        made = _Decode(self, requests, sampling, listener).run() if asked else {}
        return [[made[i, k] for k in range(len(request.seeds))] for i, request in enumerate(requests)]

    def rest(self) -> None:
        """Do nothing: the copy of the weights is all that the engine holds between two calls."""

    def counts(self) -> Mapping[str, float]:
        """Return no numbers."""
        return {}

    def close(self) -> None:
        """Do nothing: all memory goes with the engine object."""

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
        self, engine: TorchEngine, requests: Sequence[Request], sampling: Sampling, listener: Listener | None
    ) -> None:
        self.requests, self.sampling, self.listener = requests, sampling, listener
        self.decoder, self.ends, self.device = engine._decoder, engine.eos_ids, engine.model.device
        self.queue = Queue(requests, engine.max_rows)
        asked = [r for r in requests if r.seeds]
        lengths, repeats = [len(r.prompt_ids) for r in asked], [len(r.seeds) for r in asked]
        self.cache: Any = self.decoder.open(lengths, repeats, engine.max_rows, sampling.max_tokens)
        self.seats = Seats(self.queue.slots)
        self.keeps = sampling.is_cut and sampling.max_kept > 0
        self.layers = self.top_k = 0
        self.made: dict[tuple[int, int], Completion] = {}

    def run(self) -> dict[tuple[int, int], Completion]:
        """Decode all; return each completion by (index of the request, index of the seed)."""
        while self._refill() or self._step():
            self._take_out()
        return self.made

    def _refill(self) -> bool:
        """Compute the prompts of responses that wait, and draw their first tokens; False if none can begin now."""
        if not self.queue:
            return False
        free = self.seats.free
        if len(free) < (self.queue.least if self.decoder.refills else self.seats.slots):
            return False
        parts = self.queue.take(len(free), self.cache.places)
        if not parts:
            return False
        begun = [
            Seat((part.number, part.first + k), uniforms(seed))
            for part in parts
            for k, seed in enumerate(part.request.seeds)
        ]
        prompts, repeats = [p.request.prompt_ids for p in parts], [len(p.request.seeds) for p in parts]
        self._draw(self.decoder.admit(self.cache, prompts, repeats, self.seats.take(begun)), begun)
        self._resize(max(self.seats.taken) + 1)
        return True

    def _step(self) -> bool:
        """Draw a token for each response in a slot; False if there is none."""
        seats = self.seats.seats
        if not self.seats.taken:
            return False
        last = torch.tensor([seat.last for seat in seats], device=self.device)
        self._draw(self.decoder.step(last, self.cache), seats)
        return True

    def _draw(self, logits: torch.Tensor, seats: Sequence[Seat]) -> None:
        """Draw a token for each response from its row of logits [n, V]."""
        numbers = torch.tensor([seat.number for seat in seats], dtype=torch.float64, device=self.device)
        drawn = (pick_kept if self.keeps else pick)(logits, numbers, self.sampling)
        for seat, token, logprob in zip(seats, drawn[0].tolist(), drawn[1].tolist(), strict=True):
            # Of one that has ended too: with experts, what it is computed from changes the rounding of the others.
            seat.last = token
            if not seat.has_ended:
                seat.ids.append(token)
                seat.logprobs.append(logprob)
                seat.number = next(seat.numbers)
        if len(drawn) == 3:
            self._keep_sets(seats, drawn[2])
        routing = getattr(self.cache, "routing", None)
        if self.sampling.keep_routing and routing is not None:
            self._keep_experts(seats, routing)

    def _keep_sets(self, seats: Sequence[Seat], kept: Kept) -> None:
        sizes, bounded = kept.sizes.tolist(), kept.bounded.tolist()
        for seat, ids, size, is_bounded in zip(seats, kept.ids.cpu().numpy(), sizes, bounded, strict=True):
            if not seat.has_ended:
                seat.sizes.append(size)
                seat.sets += ids[:size].tobytes()
                seat.num_bounded += is_bounded

    def _keep_experts(self, seats: Sequence[Seat], routing: torch.Tensor) -> None:
        """Add the experts [n, tokens, layers, top_k] of a prompt, which is padded on the left, or of a single token."""
        self.layers, self.top_k = routing.shape[2:]
        for seat, experts in zip(seats, routing.cpu().numpy(), strict=True):
            if not seat.has_ended:
                seat.experts += experts[-len(self.requests[seat.place[0]].prompt_ids) :].tobytes()

    def _take_out(self) -> None:
        """Take out the responses that have ended."""
        seats = self.seats.seats
        ended = [slot for slot in self.seats.taken if self._ends(seats[slot])]
        if not ended:
            return
        self.cache.leave(ended)
        heard = []
        for seat in (seats[slot] for slot in ended):
            seat.has_ended = True
            self.made[seat.place] = made = self._completion(seat)
            heard.append(Ended(*seat.place, made.token_ids, made.finish_reason))
        if self.listener is not None:
            self.listener(heard)
        rows, alive = len(seats), len(self.seats.taken)
        waits = self.queue and self.decoder.refills and self.seats.slots - alive >= self.queue.least
        if alive and not waits and rows - alive >= REFILL_SHARE * rows:
            self._resize(alive)

    def _resize(self, rows: int) -> None:
        self.cache.move(*self.seats.closed_up(rows))
        self.cache.resize(rows)

    def _ends(self, seat: Seat) -> bool:
        return seat.ids[-1] in self.ends or len(seat.ids) == self.sampling.max_tokens

    def _completion(self, seat: Seat) -> Completion:
        return Completion(
            tuple(seat.ids),
            tuple(seat.logprobs),
            "stop" if seat.ids[-1] in self.ends else "length",
            KeptTokens(tuple(seat.sizes), bytes(seat.sets), seat.num_bounded) if self.keeps else None,
            Routing(self.layers, self.top_k, bytes(seat.experts)) if seat.experts else None,
        )
