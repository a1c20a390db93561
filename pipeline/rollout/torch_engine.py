"""The embedded engine: decodes whole batches in this process with a preallocated cache, dropping finished rows.

It shares the policy's module. `publish` copies the weights, so an update never reaches a decode under way. Models of
the Llama family take the fast path of `pipeline.models.decoder`; any other causal LM goes through transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pipeline.errors import EngineError, boundary
from pipeline.models.decoder import Decoder, check_parity, unsupported
from pipeline.rollout.engine import Completion, Ended, Listener, Request, Sampling, check_requests
from pipeline.rollout.hf_decoder import HfDecoder
from pipeline.rollout.sampling import pick, pick_kept, uniforms
from pipeline.rollout.sampling_record import Recorder

COMPACT_SHARE = 0.125
"""Finished rows are dropped once they are this share: a copy of the cache costs about one step."""


class Part(NamedTuple):
    """Some responses of a request."""

    number: int
    """Of the request."""
    first: int
    """The place of the first response among the request's."""
    request: Request


class TorchEngine:
    """Generates with the module `model` (a transformers causal LM), on its device."""

    def __init__(self, model: Any, eos_ids: Sequence[int], pad_id: int, max_rows: int = 1024) -> None:
        self.model = model
        self.eos_ids = torch.tensor(sorted(set(eos_ids)), dtype=torch.int64, device=model.device)
        self.pad_id = pad_id
        self.max_rows = max_rows
        self._version = -1
        self.fallback_reason: str | None = None
        self._decoder: Decoder | HfDecoder = self._choose()

    @property
    def version(self) -> int:
        """The version of the weights in use; -1 before the first `publish`."""
        return self._version

    @property
    def is_fast(self) -> bool:
        """The fast decode path is in use."""
        return isinstance(self._decoder, Decoder)

    def publish(self, version: int) -> None:
        """Copy the module's present weights; they are `version` from now on."""
        with boundary(EngineError, "publishing weights to the embedded engine"):
            self._decoder.refresh()
        self._version = version

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        """Per request, one completion per seed. Prompts of like length are decoded together, in at most max_rows rows.

        The longest come first: their responses tend to be the longest, and graders can be at them during the rest.
        Raises: EngineError for a prompt that leaves no room in the model's context.
        """
        return self._generate(requests, sampling, None)

    def generate_streaming(
        self, requests: Sequence[Request], sampling: Sampling, listener: Listener
    ) -> list[list[Completion]]:
        """As `generate`; `listener` is told at each step of those that ended with it."""
        return self._generate(requests, sampling, listener)

    def _generate(
        self, requests: Sequence[Request], sampling: Sampling, listener: Listener | None
    ) -> list[list[Completion]]:
        limit = getattr(self.model.config, "max_position_embeddings", None)
        check_requests(requests, sampling.max_tokens, limit, "the model's context")
        found: dict[tuple[int, int], Completion] = {}
        for wave in reversed(_waves(requests, self.max_rows)):
            self._wave(wave, sampling, found, listener)
        return [[found[i, k] for k in range(len(request.seeds))] for i, request in enumerate(requests)]

    def close(self) -> None:
        """Nothing outlives the engine object."""

    def _choose(self) -> Decoder | HfDecoder:
        fast = Decoder.of(self.model)
        if fast is None:
            self.fallback_reason = f"no fast path for {unsupported(self.model.config)}"
            return HfDecoder(self.model)
        try:
            check_parity(fast, 2e-3 if self.model.dtype == torch.float32 else 0.5)
        except ValueError as exc:
            self.fallback_reason = str(exc)
            return HfDecoder(self.model)
        return fast

    @torch.inference_mode()
    def _wave(
        self,
        wave: Sequence[Part],
        sampling: Sampling,
        found: dict[tuple[int, int], Completion],
        listener: Listener | None,
    ) -> None:
        device = self.eos_ids.device
        requests = [part.request for part in wave]
        places = [(part.number, part.first + k) for part in wave for k in range(len(part.request.seeds))]
        width = max(len(r.prompt_ids) for r in requests)
        ids = torch.tensor([[self.pad_id] * (width - len(r.prompt_ids)) + list(r.prompt_ids) for r in requests])
        pad = torch.tensor([width - len(r.prompt_ids) for r in requests], device=device)
        repeat = torch.tensor([len(r.seeds) for r in requests], device=device)
        draws = uniforms([s for r in requests for s in r.seeds], sampling.max_tokens, device)
        logits, cache = self._decoder.prefill(ids.to(device), pad, repeat, sampling.max_tokens)
        recorder = Recorder(len(logits), sampling.max_tokens)
        tokens, logprobs, lengths = self._decode(logits, cache, draws, sampling, recorder, _teller(listener, places))
        prompts = [len(request.prompt_ids) for request in requests for _ in request.seeds]
        kept = recorder.kept(lengths) if _keeps(sampling) else None
        routing = recorder.routes(prompts, lengths) if sampling.keep_routing and _routed(cache) is not None else None
        for row, (place, n) in enumerate(zip(places, lengths, strict=True)):
            ended = n < sampling.max_tokens or self._is_eos(tokens[row][n - 1])
            found[place] = Completion(
                tuple(tokens[row][:n]),
                tuple(logprobs[row][:n]),
                "stop" if ended else "length",
                None if kept is None else kept[row],
                None if routing is None else routing[row],
            )

    def _decode(
        self,
        logits: Tensor,
        cache: Any,
        draws: Tensor,
        sampling: Sampling,
        recorder: Recorder,
        tell: Callable[[list[int], Tensor], None] | None,
    ) -> tuple[list[list[int]], list[list[float]], list[int]]:
        rows, steps = logits.shape[0], sampling.max_tokens
        tokens = torch.full((rows, steps), self.pad_id, dtype=torch.int64, device=logits.device)
        logprobs = torch.zeros(rows, steps, device=logits.device)
        lengths = torch.full((rows,), steps, dtype=torch.int64, device=logits.device)
        active = torch.arange(rows, device=logits.device)  # the output row of each row still in the cache
        done = torch.zeros(rows, dtype=torch.bool, device=logits.device)
        for t in range(steps):
            if sampling.keep_routing and (routing := _routed(cache)) is not None:
                recorder.route(routing, active)
            numbers = draws[t].index_select(0, active)
            if _keeps(sampling):
                drawn, logprob, kept = pick_kept(logits, numbers, sampling)
                recorder.keep(t, kept, active, ~done)
            else:
                drawn, logprob = pick(logits, numbers, sampling)
            tokens[active, t], logprobs[active, t] = drawn, logprob
            ended = torch.isin(drawn, self.eos_ids) & ~done
            lengths[active[ended]] = t + 1
            done |= ended
            if tell is not None:
                tell(active[ended].tolist(), tokens[:, : t + 1])
            finished = int(done.sum())
            if finished == done.numel():
                break
            if finished >= COMPACT_SHARE * done.numel():
                keep = (~done).nonzero()[:, 0]
                cache.keep(keep)
                drawn, active, done = drawn[keep], active[keep], done[keep]
            if t + 1 < steps:
                logits = self._decoder.step(drawn, cache)
        return tokens.tolist(), logprobs.tolist(), lengths.tolist()

    def _is_eos(self, token: int) -> bool:
        return bool((self.eos_ids == token).any())


def _teller(listener: Listener | None, places: Sequence[tuple[int, int]]) -> Callable[[list[int], Tensor], None] | None:
    """Tells `listener` of rows of the wave that ended (their numbers) with the tokens of all rows until now."""
    if listener is None:
        return None

    def tell(rows: list[int], tokens: Tensor) -> None:
        if rows:
            said = zip(rows, tokens[rows].tolist(), strict=True)
            listener([Ended(*places[row], tuple(ids), "stop") for row, ids in said])

    return tell


def _keeps(sampling: Sampling) -> bool:
    return sampling.is_cut and sampling.max_kept > 0


def _routed(cache: Any) -> Tensor | None:
    """The experts of the last forward; None for a dense model."""
    return getattr(cache, "routing", None)


def _waves(requests: Sequence[Request], max_rows: int) -> list[list[Part]]:
    """What is decoded together, at most `max_rows` responses each, by length of prompt from the shortest."""
    waves: list[list[Part]] = []
    rows = max_rows
    for i in sorted(range(len(requests)), key=lambda i: len(requests[i].prompt_ids)):
        for part in _parts(i, requests[i], max_rows):
            if rows + len(part.request.seeds) > max_rows:
                waves.append([])
                rows = 0
            waves[-1].append(part)
            rows += len(part.request.seeds)
    return waves


def _parts(number: int, request: Request, max_rows: int) -> list[Part]:
    """The request in parts of at most `max_rows` responses."""
    cuts = range(0, len(request.seeds), max_rows)
    return [Part(number, at, Request(request.prompt_ids, request.seeds[at : at + max_rows])) for at in cuts]
