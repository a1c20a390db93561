"""The embedded engine: decodes whole batches in this process with a preallocated cache, dropping finished rows.

`publish` copies the weights of the policy's module, so an update never reaches responses that are being written. Models
of the Llama family take the fast path of `pipeline.models.cpu`; any other causal LM goes through transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pipeline.errors import EngineError, boundary
from pipeline.models.cpu import Decoder, check_parity, habits_of, unsupported
from pipeline.rollout.engine import Completion, Ended, Listener, Request, Sampling, check_requests
from pipeline.rollout.hf_decoder import HfCache, HfDecoder
from pipeline.rollout.sampling import pick, pick_kept, uniforms
from pipeline.rollout.sampling_record import Recorder

COMPACT_SHARE = 0.125
"""Finished rows are dropped once they reach this share of all: dropping copies the cache, which costs about a step."""


class RequestPart(NamedTuple):
    """A prompt with some of the seeds of a request."""

    number: int
    """Index of the request."""
    first: int
    """Index of the part's first seed among the request's seeds."""
    request: Request


class TorchEngine:
    """Generates with the module `model` (a transformers causal LM), on its device."""

    answers_threads = False

    def __init__(self, model: Any, eos_ids: Sequence[int], pad_id: int, max_rows: int = 1024) -> None:
        self.model = model
        self._ends = frozenset(eos_ids)
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

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, listener: Listener | None = None
    ) -> list[list[Completion]]:
        """Return, per request, one completion per seed; `listener` hears of each that stops, at the step of its end.

        Raises: EngineError for a prompt that leaves no room in the model's context.
        """
        limit = getattr(self.model.config, "max_position_embeddings", None)
        check_requests(requests, sampling.max_tokens, limit, "the model's context")
        made: dict[tuple[int, int], Completion] = {}
        # Longest prompts first: their responses tend to be the longest, and graders work on them during the rest.
        for wave in reversed(_waves(requests, self.max_rows)):
            made |= self._decode_wave(wave, sampling, listener)
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
            return HfDecoder(self.model)
        try:
            check_parity(fast)
        except ValueError as exc:
            self.fallback_reason = str(exc)
            return HfDecoder(self.model)
        return fast

    @torch.inference_mode()
    def _decode_wave(
        self, wave: Sequence[RequestPart], sampling: Sampling, listener: Listener | None
    ) -> dict[tuple[int, int], Completion]:
        """Decode the parts together; return each completion by (index of the request, index of the seed)."""
        device = self.eos_ids.device
        requests = [part.request for part in wave]
        places = [(part.number, part.first + k) for part in wave for k in range(len(part.request.seeds))]
        # Prompts are padded on the left, so that the next token of every row goes into the same column.
        width = max(len(r.prompt_ids) for r in requests)
        ids = torch.tensor([[self.pad_id] * (width - len(r.prompt_ids)) + list(r.prompt_ids) for r in requests])
        pad = torch.tensor([width - len(r.prompt_ids) for r in requests], device=device)
        repeat = torch.tensor([len(r.seeds) for r in requests], device=device)
        # All numbers are drawn ahead: a row's number at a step does not depend on which rows have ended.
        draws = uniforms([s for r in requests for s in r.seeds], sampling.max_tokens, device)
        logits, cache = self._decoder.prefill(ids.to(device), pad, repeat, sampling.max_tokens)
        recorder = Recorder(len(logits), sampling.max_tokens, device)
        tell = None if listener is None else partial(self._tell, listener, places)
        tokens, logprobs, lengths = self._decode(logits, cache, draws, sampling, recorder, tell)
        prompts = [len(request.prompt_ids) for request in requests for _ in request.seeds]
        kept = recorder.kept(lengths) if _keeps(sampling) else None
        routing = recorder.routes(prompts, lengths) if sampling.keep_routing and _routed(cache) is not None else None
        made = {}
        for row, (place, n) in enumerate(zip(places, lengths, strict=True)):
            # A response may end with its last permitted token.
            ended = n < sampling.max_tokens or tokens[row][n - 1] in self._ends
            made[place] = Completion(
                tuple(tokens[row][:n]),
                tuple(logprobs[row][:n]),
                "stop" if ended else "length",
                None if kept is None else kept[row],
                None if routing is None else routing[row],
            )
        return made

    def _decode(
        self,
        logits: Tensor,
        cache: Any,
        draws: Tensor,
        sampling: Sampling,
        recorder: Recorder,
        tell: Callable[[list[int], Tensor], None] | None,
    ) -> tuple[list[list[int]], list[list[float]], list[int]]:
        """Return tokens and log-probs of each row, padded to the limit, and the rows' lengths.

        logits: float32 [B, V] after the prompts; draws: float64 [steps, B]. `tell` receives the rows that have ended
        since the last look and the tokens of all rows so far.
        """
        rows, steps = logits.shape[0], sampling.max_tokens
        tokens = torch.full((rows, steps), self.pad_id, dtype=torch.int64, device=logits.device)
        logprobs = torch.zeros(rows, steps, device=logits.device)
        active = torch.arange(rows, device=logits.device)  # output row of each row that is still in the cache
        done = torch.zeros(rows, dtype=torch.bool, device=logits.device)
        seen = Seen(rows)
        for t in range(steps):
            if sampling.keep_routing and (routing := _routed(cache)) is not None:
                recorder.route(routing, active)
            numbers = draws[t].index_select(0, active)  # by output row: a row's draws do not depend on its company
            if _keeps(sampling):
                drawn, logprob, kept = pick_kept(logits, numbers, sampling)
                # `done` is of the earlier tokens: the end token's own set is recorded too.
                recorder.keep(t, kept, active, ~done)
            else:
                drawn, logprob = pick(logits, numbers, sampling)
            tokens[active, t], logprobs[active, t] = drawn, logprob
            done |= torch.isin(drawn, self.eos_ids)
            if (t + 1) % self.read_every == 0 or t + 1 == steps:
                # The only transfer of the loop: all that the host must know follows from these flags.
                ended = seen.look(done.tolist())
                if tell is not None and ended:
                    tell(ended, tokens[:, : t + 1])
                if seen.finished == len(seen.active):
                    break
                # Until they are dropped, finished rows are decoded too; their tokens lie beyond their lengths.
                if seen.finished >= COMPACT_SHARE * len(seen.active):
                    keep = torch.tensor(seen.drop(), device=logits.device)
                    cache.keep(keep)
                    drawn, active, done = drawn[keep], active[keep], done[keep]
            if t + 1 < steps:
                logits = self._decoder.step(drawn, cache)
        before_end = torch.isin(tokens, self.eos_ids).cumsum(1) == 0
        lengths = (before_end.sum(1) + 1).clamp_(max=steps)
        return tokens.tolist(), logprobs.tolist(), lengths.tolist()

    def _tell(self, listener: Listener, places: Sequence[tuple[int, int]], rows: list[int], tokens: Tensor) -> None:
        """Tell `listener` of rows of a wave that have ended; tokens: int64 [all rows, tokens so far]."""
        ended = []
        for row, ids in zip(rows, tokens[rows].tolist(), strict=True):
            # The row ended after the last look: only these tokens can be its end.
            unseen = range(max(0, len(ids) - self.read_every), len(ids))
            length = next(i for i in unseen if ids[i] in self._ends) + 1
            ended.append(Ended(*places[row], tuple(ids[:length]), "stop"))
        listener(ended)


class Seen:
    """The host's knowledge of a decode on the device, as of its last look: the rows in the cache and those ended."""

    def __init__(self, rows: int) -> None:
        self.active = list(range(rows))
        """The output row of each row in the cache."""
        self.finished = 0
        self._done = [False] * rows

    def look(self, done: list[bool]) -> list[int]:
        """Take the flags of the rows in the cache; return the output rows that have ended since the last look."""
        finished = sum(done)
        if finished == self.finished:
            return []
        ended = [row for row, now, before in zip(self.active, done, self._done, strict=True) if now and not before]
        self.finished, self._done = finished, done
        return ended

    def drop(self) -> list[int]:
        """Forget the rows that have ended; return the places in the cache of those that stay."""
        keep = [i for i, done in enumerate(self._done) if not done]
        self.active, self._done, self.finished = [self.active[i] for i in keep], [False] * len(keep), 0
        return keep


def _keeps(sampling: Sampling) -> bool:
    return sampling.is_cut and sampling.max_kept > 0


def _routed(cache: Any) -> Tensor | None:
    """Return the experts of the last forward; None for a dense model and for the fast path's cache."""
    return cache.routing if isinstance(cache, HfCache) else None


def _waves(requests: Sequence[Request], max_rows: int) -> list[list[RequestPart]]:
    """Return the parts that are decoded together, at most `max_rows` responses each, from the shortest prompts on."""
    waves: list[list[RequestPart]] = []
    # "Full", so that the first part opens the first wave.
    rows = max_rows
    for i in sorted(range(len(requests)), key=lambda i: len(requests[i].prompt_ids)):
        for part in _parts(i, requests[i], max_rows):
            if rows + len(part.request.seeds) > max_rows:
                waves.append([])
                rows = 0
            waves[-1].append(part)
            rows += len(part.request.seeds)
    return waves


def _parts(number: int, request: Request, max_rows: int) -> list[RequestPart]:
    """Split the request into parts of at most `max_rows` responses."""
    cuts = range(0, len(request.seeds), max_rows)
    return [RequestPart(number, at, Request(request.prompt_ids, request.seeds[at : at + max_rows])) for at in cuts]
