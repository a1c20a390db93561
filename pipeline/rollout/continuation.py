"""Generates responses in several pieces, each with the weights that the engine has at that time."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from verizero.pipeline.rollout.engine import Completion, Request, Sampling
from verizero.pipeline.rollout.generate import Generation, Renderer, check_recorded, generate_rollouts
from verizero.pipeline.seeds import derive
from verizero.pipeline.types import KeptTokens, Prompt, Rollout, Routing


class ResponseKind(NamedTuple):
    """One kind of response to each prompt of a batch.

    Example: ResponseKind("rl greedy", 1, Sampling(512, temperature=0))
    """

    stream: str
    """The name of its random stream."""
    samples: int
    """The number of responses to each prompt."""
    sampling: Sampling


@dataclass
class PartialBatch:
    """A batch of prompts, the kinds of responses to generate, and those tokens that are sampled so far."""

    prompts: tuple[Prompt, ...]
    kinds: tuple[ResponseKind, ...]
    stream: tuple[str | int, ...]
    """Names the batch's random numbers, which do not depend on the engine or the time."""
    rollouts: list[list[Rollout]] = field(default_factory=list)
    """For each kind, prompt by prompt. Empty before the first piece."""


def continue_batch(batch: PartialBatch, generation: Generation, max_new_tokens: int | None) -> None:
    """Sample up to `max_new_tokens` further tokens of each unfinished response; None: all that is left."""
    is_first = not batch.rollouts
    for index, kind in enumerate(batch.kinds):
        if is_first:
            limit = kind.sampling.max_tokens
            if max_new_tokens is not None:
                limit = min(max_new_tokens, limit)
            first, stream = replace(kind.sampling, max_tokens=limit), (kind.stream, *batch.stream)
            batch.rollouts.append(generate_rollouts(generation, batch.prompts, kind.samples, first, *stream))
        else:
            # a stream of its own: a continued response must not repeat the numbers of its first piece
            stream = (kind.stream, *batch.stream, "on")
            rollouts = batch.rollouts[index]
            batch.rollouts[index] = continue_rollouts(generation, rollouts, kind.sampling, max_new_tokens, *stream)


def is_unfinished(rollout: Rollout, sampling: Sampling) -> bool:
    """True if the response neither ended nor reached its limit. Episodes are played to their end at once."""
    if rollout.episode is not None:
        return False
    return rollout.finish_reason == "length" and len(rollout.response_ids) < sampling.max_tokens


def continue_rollouts(
    generation: Generation,
    rollouts: Sequence[Rollout],
    sampling: Sampling,
    max_new_tokens: int | None,
    *stream: str | int,
) -> list[Rollout]:
    """Return the rollouts; the engine's present weights add up to `max_new_tokens` tokens to each unfinished one.

    The engine computes prompt and response so far again, so each new token depends on the new weights alone. A
    rollout's version stays that of its first token, the oldest; each log-prob is that of the weights that sampled it.
    """
    times: Counter[tuple[str, int]] = Counter()
    by_length: dict[int, list[tuple[int, Request]]] = {}
    for i, r in enumerate(rollouts):
        key = (r.prompt_id, r.sample)
        times[key] += 1  # a prompt that occurs twice in the batch gets other numbers the second time
        if is_unfinished(r, sampling):
            length = len(r.response_ids)
            # The length names the piece: each further piece begins at another one, so its numbers are new.
            request_seed = derive(generation.seed, "rollout", *stream, *key, times[key], length)
            left = sampling.max_tokens - length
            request = Request((*r.prompt_ids, *r.response_ids), (request_seed,))
            by_length.setdefault(left if max_new_tokens is None else min(max_new_tokens, left), []).append((i, request))
    out = list(rollouts)
    for max_tokens, requests in by_length.items():  # one call for each limit: a call has one max_tokens
        longer = replace(sampling, max_tokens=max_tokens)
        answers = generation.engine.generate([request for _, request in requests], longer)
        check_recorded(sampling, [c for (c,) in answers])
        for (i, _), (completion,) in zip(requests, answers, strict=True):
            out[i] = _extended(rollouts[i], completion, generation.renderer)
    return out


def _extended(rollout: Rollout, more: Completion, renderer: Renderer) -> Rollout:
    ids = (*rollout.response_ids, *more.token_ids)
    return replace(
        rollout,
        response_ids=array("i", ids),
        logprobs=array("f", (*rollout.logprobs, *more.logprobs)),
        text=renderer.decode(ids),
        finish_reason=more.finish_reason,
        kept=_joined_kept(rollout.kept, more.kept),
        routing=_joined_routing(rollout, more.routing),
    )


def _joined_kept(first: KeptTokens | None, more: KeptTokens | None) -> KeptTokens | None:
    if first is None or more is None:
        return None
    return KeptTokens((*first.sizes, *more.sizes), first.ids + more.ids, first.num_bounded + more.num_bounded)


def _joined_routing(rollout: Rollout, more: Routing | None) -> Routing | None:
    """Return the experts that each token was sampled with.

    The engine computed the first piece again, perhaps with other experts: what was recorded first is kept.
    """
    if rollout.routing is None or more is None:
        return None
    return replace(more, experts=rollout.routing.experts + more.experts[len(rollout.routing.experts) :])


def oldest_version(rollouts: Iterable[Rollout]) -> int:
    """Return the version of the weights that sampled the oldest token of the rollouts."""
    return min(r.oldest_version for r in rollouts)
