"""The embedded engine: decodes in this process, in slots of a preallocated cache that are refilled as responses end.

`publish` copies the weights of the policy's module, so an update never reaches responses that are being written. Models
of the Llama family take the fast path of `verizero.pipeline.models.cpu`; any other causal LM goes through transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from verizero.pipeline.errors import EngineError, boundary
from verizero.pipeline.models.cpu import Decoder, check_parity, habits_of, unsupported
from verizero.pipeline.rollout.engine import Completion, Ended, Listener, Request, Sampling, check_requests
from verizero.pipeline.rollout.hf_decoder import HfDecoder
from verizero.pipeline.rollout.sampling import pick, pick_kept
from verizero.pipeline.rollout.sampling_record import Recorder
from verizero.pipeline.rollout.slots import REFILL_SHARE, Queue, Seat, Seats
from verizero.pipeline.rollout.written import Written
from verizero.pipeline.types import FinishReason


class TorchEngine:
    """Generates with the module `model` (a transformers causal LM), on its device."""

    answers_threads = False

    def __init__(self, model: Any, eos_ids: Sequence[int], pad_id: int, max_rows: int = 1024) -> None:
        self.model = model
        self.eos_ids = torch.tensor(sorted(set(eos_ids)), dtype=torch.int64, device=model.device)
        self.pad_id = pad_id
        self.max_rows = max_rows
        self.version = -1
        self.fallback_reason: str | None = None
        self.read_every = habits_of(model.device).read_every
        """Steps between two looks at the rows that have ended: each look waits for all work of the device."""
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
        made = _Decode(self, requests, sampling, listener).made() if asked else {}
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
        self.sampling, self.listener, self.read_every = sampling, listener, engine.read_every
        self.decoder, self.ends = engine._decoder, frozenset(engine.eos_ids.tolist())
        self.requests = requests
        self.queue = Queue(requests, engine.max_rows)
        asked = [r for r in requests if r.seeds]
        lengths, repeats = [len(r.prompt_ids) for r in asked], [len(r.seeds) for r in asked]
        self.cache: Any = self.decoder.open(lengths, repeats, engine.max_rows, sampling.max_tokens)
        slots = self.queue.slots
        self.seats = Seats(slots)
        self.written = Written(slots, sampling, engine.eos_ids)
        self.index = torch.arange(slots, device=engine.eos_ids.device)
        self.keeps = sampling.is_cut and sampling.max_kept > 0
        self.recorder = Recorder(self.queue.total, slots, sampling.max_tokens)
        self.done: list[tuple[Seat, tuple[int, ...], tuple[float, ...]]] = []
        self.begun = self.newest = 0

    def made(self) -> dict[tuple[int, int], Completion]:
        """Decode all; return each completion by (index of the request, index of the seed)."""
        unseen = 0
        while True:
            if self._refill():
                pass
            elif self.seats.taken:
                rows = self.seats.rows
                self._draw(self.decoder.step(self.written.last[:rows], self.cache), self.index[:rows])
            else:
                break
            unseen += 1
            self.recorder.step_taken()
            # Rows that have all their tokens have ended: no look is needed to know it.
            if unseen >= self.read_every or self._drawn(self.newest) >= self.sampling.max_tokens:
                self._look()
                unseen = 0
        return self._completions()

    def _drawn(self, begun: int) -> int:
        """Return how many tokens a row has drawn that began after so many steps, unless it has ended."""
        steps: int = self.cache.steps
        return steps - begun + 1

    def _refill(self) -> bool:
        """Compute the prompts of responses that wait, and draw their first tokens; False if none can begin now."""
        if not self.queue:
            return False
        free = self.seats.free
        if len(free) < (self.queue.least if self.decoder.refills else len(self.seats.seats)):
            return False
        parts = self.queue.take(len(free), self.cache.places)
        if not parts:
            return False
        seeds = [seed for part in parts for seed in part.request.seeds]
        places = [(part.number, part.first + k) for part in parts for k in range(len(part.request.seeds))]
        slots, device = free[: len(seeds)], self.index.device
        prompts, repeats = [p.request.prompt_ids for p in parts], [len(p.request.seeds) for p in parts]
        logits = self.decoder.admit(self.cache, prompts, repeats, slots)
        self.newest = self.cache.steps
        for slot, place in zip(slots, places, strict=True):
            self.seats.seats[slot] = Seat(place, self.begun, self.newest)
            self.begun += 1
        owners = torch.arange(self.begun - len(seeds), self.begun, device=device)
        rows = torch.tensor(slots, device=device)
        self.written.begin(rows, seeds, owners)
        self._draw(logits, rows)
        self._resize(max(self.seats.taken) + 1)
        return True

    def _draw(self, logits: torch.Tensor, rows: torch.Tensor) -> None:
        written, routing = self.written, getattr(self.cache, "routing", None)
        if self.sampling.keep_routing and routing is not None:
            self.recorder.route(routing, written.owner.index_select(0, rows))
        if not self.keeps:
            written.draw(logits, rows, pick)
            return
        at, running = written.count.index_select(0, rows), ~written.done.index_select(0, rows)
        kept = written.draw(logits, rows, pick_kept)
        assert kept is not None
        self.recorder.keep(at, kept, rows, written.owner.index_select(0, rows), running)

    def _look(self) -> None:
        """Take out the rows that have ended."""
        # The only transfer while no row ends: all that the host must know follows from these flags.
        done = self.written.done[: self.seats.rows].tolist()
        ended = [slot for slot in self.seats.taken if done[slot]]
        if not ended:
            return
        left = self.seats.leave(ended)
        self.cache.leave(ended)
        most = min(self.sampling.max_tokens, max(self._drawn(seat.begun) for seat in left))
        texts = self.written.read(ended, most)
        self.done += [(seat, *text) for seat, text in zip(left, texts, strict=True)]
        if self.listener is not None:
            self.listener(
                [Ended(*seat.place, ids, self._reason(ids)) for seat, (ids, _) in zip(left, texts, strict=True)]
            )
        alive = len(self.seats.taken)
        waits = self.queue and self.decoder.refills and len(self.seats.seats) - alive >= self.queue.least
        if alive and not waits and self.seats.rows - alive >= REFILL_SHARE * self.seats.rows:
            self._resize(alive)

    def _resize(self, needed: int) -> None:
        sources, targets = self.seats.closed_up(needed)
        self.cache.move(sources, targets)
        self.written.move(sources, targets)
        self.cache.resize(needed)

    def _reason(self, ids: tuple[int, ...]) -> FinishReason:
        return "stop" if ids[-1] in self.ends else "length"

    def _completions(self) -> dict[tuple[int, int], Completion]:
        done = sorted(self.done, key=lambda item: item[0].row)
        lengths = [len(ids) for _, ids, _ in done]
        prompts = [len(self.requests[seat.place[0]].prompt_ids) for seat, _, _ in done]
        kept = self.recorder.kept(lengths)
        routing = self.recorder.routes(prompts, lengths) if self.recorder.has_routes else None
        return {
            seat.place: Completion(
                ids,
                logprobs,
                self._reason(ids),
                None if kept is None else kept[seat.row],
                None if routing is None else routing[seat.row],
            )
            for seat, ids, logprobs in done
        }
